// BenchAdapters: random adapters for `shoal bench`, written as PEFT folders and loaded by the road that serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/session.h"

namespace shoal {

struct BenchAdapterOptions {
  std::int64_t count = 0;
  std::int64_t rank = 16;
  std::string targets = "all";  // all linear layers but the head, or qkv
};

class BenchAdapters {
 public:
  // Throws StartError when a folder cannot be written or loaded.
  BenchAdapters(Session& session, const BenchAdapterOptions& options);

  const std::vector<std::int32_t>& slots() const { return slots_; }
  // Bytes of adapters that a decode step of this many rows reads: each adapter in the batch once.
  double bytes_read(std::int64_t batch) const;

 private:
  std::vector<std::int32_t> slots_;
  double bytes_each_ = 0.0;
};

}  // namespace shoal
