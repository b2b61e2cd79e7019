// Traces from seeds. Each draws its sizes first and its requests then, so that runs differ in kind and not only in
// detail: scarce blocks, scarce adapter memory, idle and saturated servers, few hot adapters and thousands of cold
// ones.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "scheduler/fake_engine.h"
#include "simulator/trace.h"

namespace shoal {
namespace {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t bits() { return draw_of(seed_, index_++); }
  // In [0, limit).
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(limit));
  }
  std::int64_t between(std::int64_t least, std::int64_t most) { return least + below(most - least + 1); }
  bool percent(std::int64_t share) { return below(100) < share; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(std::ssize(values))];
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  std::int64_t exponential(std::int64_t mean) {
    return static_cast<std::int64_t>(-std::log(1.0 - unit()) * static_cast<double>(mean));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

// What the requests of one trace have in common.
struct Traffic {
  std::int64_t num_requests = 0;
  std::int64_t gap_us = 0;  // mean
  std::int64_t num_adapters = 1;
  std::int64_t num_hot_adapters = 0;  // that nearly all requests ask for, 0: none
  bool is_zipf = true;                // else all adapters are asked for alike
  std::int64_t base_percent = 0;
  std::int64_t most_shared_tokens = 0;
  std::int64_t most_own_tokens = 1;
  std::int64_t most_new_tokens = 1;
  std::int64_t cancel_percent = 0;
  std::int64_t penalty_percent = 0;
  std::int64_t num_tenants = 1;
  std::int32_t most_priority = 0;
  std::int64_t odd_percent = 0;  // stop tokens, rows that are not a number, requests that can never fit
};

void draw_sizes(Draws& draws, Trace& trace) {
  trace.num_blocks = draws.percent(60) ? draws.between(8, 16) : draws.between(16, 80);
  trace.step_tokens = draws.one_of<std::int64_t>({3, 16, 32, 64, 128});
  trace.max_sequences = draws.between(2, 8);
  if (draws.percent(35)) trace.sliding_window = draws.one_of<std::int64_t>({5, 16, 20, 32, 48});
  trace.prefix_caching = draws.percent(60);
  trace.shuffled_blocks = draws.percent(50);
  if (draws.percent(10)) trace.max_requests = draws.between(5, 30);
  if (draws.percent(10)) trace.max_queue = draws.between(0, 20);
  if (draws.percent(10)) trace.max_of_tenant = draws.between(2, 20);
  if (draws.percent(20)) trace.timeout_ms = draws.one_of<std::int64_t>({10, 100, 1000});
  trace.cycle_ms = draws.one_of<std::int64_t>({5, 20, 100, 500});
  trace.device_units = draws.between(2, 8);
  trace.host_units = trace.device_units + draws.between(0, 30);
  if (draws.percent(20)) trace.max_device_adapters = draws.between(1, 4);
  trace.num_loaders = draws.between(1, 4);
  trace.load_us = draws.one_of<std::int64_t>({0, 500, 5000, 30000});
  trace.upload_us = draws.one_of<std::int64_t>({0, 100, 2000});
  if (draws.percent(40)) trace.big_every = draws.between(2, 6);
  if (draws.percent(25)) trace.broken_every = draws.between(3, 9);
  if (draws.percent(25)) trace.fail_percent = draws.between(1, 20);
}

Traffic draw_traffic(Draws& draws) {
  return {.num_requests = draws.between(25, 110),
          .gap_us = draws.one_of<std::int64_t>({0, 500, 2000, 5000, 15000}),
          .num_adapters = draws.one_of<std::int64_t>({1, 3, 10, 100, 10000}),
          .is_zipf = draws.percent(70),
          .base_percent = draws.one_of<std::int64_t>({0, 20, 100, 50}),
          .most_shared_tokens = draws.one_of<std::int64_t>({0, 60, 100}),
          .most_own_tokens = draws.one_of<std::int64_t>({4, 20, 60}),
          .most_new_tokens = draws.one_of<std::int64_t>({4, 20, 50, 100}),
          .cancel_percent = draws.one_of<std::int64_t>({0, 10, 40}),
          .penalty_percent = draws.one_of<std::int64_t>({0, 30}),
          .num_tenants = draws.one_of<std::int64_t>({1, 1, 3}),
          .most_priority = draws.one_of<std::int32_t>({0, 0, 2}),
          .odd_percent = draws.one_of<std::int64_t>({0, 20})};
}

// Hot adapters that fill the device without a pause, and now and then one that is cold.
Traffic draw_hot_traffic(Draws& draws, Trace& trace) {
  trace.device_units = draws.between(1, 2);
  trace.max_sequences = draws.between(3, 4);
  trace.num_blocks = 40;
  trace.step_tokens = draws.one_of<std::int64_t>({16, 32});
  trace.cycle_ms = draws.one_of<std::int64_t>({5, 10});
  trace.timeout_ms = 0;
  trace.load_us = trace.upload_us = 500;
  trace.big_every = trace.broken_every = trace.fail_percent = 0;
  return {.num_requests = draws.between(200, 350),
          .gap_us = draws.between(800, 1600),
          .num_adapters = trace.device_units + 3,
          .num_hot_adapters = trace.device_units,
          .base_percent = draws.one_of<std::int64_t>({0, 20}),
          .most_own_tokens = 4,
          .most_new_tokens = 6};
}

std::int64_t draw_adapter(Draws& draws, const Traffic& traffic) {
  if (draws.percent(traffic.base_percent)) return -1;
  if (traffic.num_hot_adapters > 0 && draws.percent(95)) return draws.below(traffic.num_hot_adapters);
  if (!traffic.is_zipf) return draws.below(traffic.num_adapters);
  // Zipf's law of exponent 1, by the inverse of its continuous form.
  const auto rank = static_cast<std::int64_t>(std::pow(static_cast<double>(traffic.num_adapters) + 1.0, draws.unit()));
  return std::min(rank, traffic.num_adapters) - 1;
}

void draw_oddity(Draws& draws, TraceRequest& request) {
  switch (draws.below(3)) {
    case 0:
      request.stop_token = draws.below(kTraceVocabulary);
      break;
    case 1:
      request.sampling_seed = FakeEngine::kNanSeed;
      break;
    default:
      request.own_tokens += draws.below(kTracePositions);
  }
}

TraceRequest draw_request(Draws& draws, const Traffic& traffic) {
  TraceRequest request;
  request.adapter = draw_adapter(draws, traffic);
  if (traffic.most_shared_tokens > 0 && draws.percent(75)) {
    request.shared_text = draws.below(3);
    request.shared_tokens = draws.below(traffic.most_shared_tokens + 1);
  }
  request.own_tokens = draws.between(request.shared_tokens > 0 ? 0 : 1, traffic.most_own_tokens);
  request.own_text = static_cast<std::uint64_t>(draws.between(10, 1'000'000));
  request.max_new_tokens = draws.between(1, traffic.most_new_tokens);
  request.sampling_seed = static_cast<std::uint64_t>(draws.below(3));
  request.has_penalties = draws.percent(traffic.penalty_percent);
  request.tenant = draws.below(traffic.num_tenants);
  if (traffic.most_priority > 0 && draws.percent(30)) {
    request.priority = static_cast<std::int32_t>(draws.between(-traffic.most_priority, traffic.most_priority));
  }
  if (draws.percent(traffic.cancel_percent)) {
    if (draws.percent(50)) {
      request.cancel_after_us = draws.exponential(20'000);
    } else {
      request.cancel_after_tokens = draws.between(1, request.max_new_tokens);
    }
  }
  if (draws.percent(traffic.odd_percent)) draw_oddity(draws, request);
  return request;
}

}  // namespace

Trace random_trace(std::uint64_t seed) {
  Draws draws(seed);
  Trace trace;
  draw_sizes(draws, trace);
  constexpr std::uint64_t kAheadDraws = 0xa4ead;  // of their own: the traces of all seeds stay what they were
  trace.runs_ahead = draw_of(kAheadDraws, seed) % 2 == 1;
  const bool is_hot = draws.percent(15);
  const Traffic traffic = is_hot ? draw_hot_traffic(draws, trace) : draw_traffic(draws);
  std::int64_t now_us = 0;
  for (std::int64_t i = 0; i < traffic.num_requests; ++i) {
    TraceRequest request = draw_request(draws, traffic);
    now_us += draws.exponential(traffic.gap_us);
    request.arrival_us = now_us;
    trace.requests.push_back(request);
  }
  if (!is_hot && draws.percent(30)) {
    for (std::int64_t n = draws.between(1, 6); n > 0; --n) {
      trace.replacements.push_back({.time_us = draws.below(now_us + 50'000), .adapter = draw_adapter(draws, traffic)});
    }
    std::erase_if(trace.replacements, [](const TraceReplacement& each) { return each.adapter < 0; });
  }
  if (draws.percent(20)) {
    for (std::int64_t n = draws.between(1, 3); n > 0; --n) trace.failed_steps.push_back(draws.below(300));
  }
  return trace;
}

}  // namespace shoal
