// Admission: who may come in, by numbers of requests, and how many may not. Used by the scheduler's loop, under its
// lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/result.h"

namespace shoal {

struct AdmissionOptions {
  std::int64_t max_concurrent_requests = 1024;               // running and queued
  std::optional<std::int64_t> max_queue = {};                // queued; none: no limit of its own
  std::optional<std::int64_t> max_requests_per_tenant = {};  // running and queued
};

// Requests that were refused, by the limit that they met.
struct RejectedCounts {
  std::int64_t max_concurrent_requests = 0;
  std::int64_t max_queue = 0;
  std::int64_t max_requests_per_tenant = 0;
};

class Admission {
 public:
  // How the loop stood when it last looked.
  struct Load {
    std::int64_t running = 0;
    std::int64_t room = 0;  // more that may run, where nobody waited
  };

  explicit Admission(AdmissionOptions options) : options_(options) {}

  // None: it is in, until leave(). An error is kOverloaded.
  std::optional<Error> enter(const std::string& tenant, const Load& load);
  void leave(const std::string& tenant);

  std::int64_t num_requests() const { return num_requests_; }
  const RejectedCounts& rejected() const { return rejected_; }

 private:
  AdmissionOptions options_;
  std::int64_t num_requests_ = 0;
  std::unordered_map<std::string, std::int64_t> by_tenant_;  // those with requests; empty without that limit
  RejectedCounts rejected_;
};

}  // namespace shoal
