// Metrics: counters and histograms of requests under LoRAX's names, and shoal_* ones beside them. Used by the
// endpoints; metrics.cc alone includes prometheus-cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/scheduler.h"

namespace shoal {

// Seconds and counts of one answered request.
struct RequestReport {
  double total_s = 0.0;
  double validation_s = 0.0;
  double queue_s = 0.0;
  double inference_s = 0.0;
  std::int64_t generated_tokens = 0;
};

class Metrics {
 public:
  Metrics(std::int64_t max_input_length, std::int64_t max_total_tokens);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // All callable from any thread.
  void count_request();
  void count_failure(std::string_view err);  // one of the labels in errors.cc, or "dropped"
  void observe_input_length(std::int64_t tokens);
  void observe_max_new_tokens(std::int64_t tokens);
  void observe_first_token(double seconds);  // from the request's arrival
  void observe_inter_token(double seconds);  // between two tokens of one answer
  void count_success(const RequestReport& report);

  // Prometheus text, and LoRAX's JSON form of the same. `adapters`: where known.
  std::string text(const SchedulerStats& stats, const std::optional<AdapterStats>& adapters) const;
  std::string json(const SchedulerStats& stats, const std::optional<AdapterStats>& adapters) const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace shoal
