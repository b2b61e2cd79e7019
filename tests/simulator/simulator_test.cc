// What the simulator itself promises: runs that repeat, traces that hold enough, failures that shrink.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "simulator/child_runs.h"
#include "simulator/shrink.h"

namespace shoal {
namespace {

TEST(SimulatorTraces, AreLongAndOfManyKinds) {
  std::vector<std::int64_t> lengths;
  std::set<std::int64_t> adapters;
  std::int64_t num_cancels = 0, num_windows = 0, num_caches = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Trace trace = random_trace(seed);
    EXPECT_EQ(trace, random_trace(seed));
    lengths.push_back(std::ssize(trace.requests));
    num_windows += trace.sliding_window > 0 ? 1 : 0;
    num_caches += trace.prefix_caching ? 1 : 0;
    for (const TraceRequest& request : trace.requests) {
      adapters.insert(request.adapter);
      num_cancels += request.cancel_after_us >= 0 || request.cancel_after_tokens >= 0 ? 1 : 0;
    }
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_GE(lengths[lengths.size() / 2], 50);
  EXPECT_GT(adapters.size(), 2000U);
  EXPECT_GT(*adapters.rbegin(), 9900);
  EXPECT_LT(*adapters.rbegin(), 10'000);
  EXPECT_GT(num_cancels, 5000);
  EXPECT_GT(num_windows, 200);
  EXPECT_GT(num_caches, 400);
}

TEST(SimulatorRuns, RepeatExactly) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const SimulationResult once = simulate(random_trace(seed));
    const SimulationResult again = simulate_in_child(random_trace(seed));
    EXPECT_EQ(once.failure, "");
    EXPECT_EQ(once.counts.digest, again.counts.digest) << "seed " << seed;
    EXPECT_NE(once.counts.digest, simulate(random_trace(seed + 1)).counts.digest);
  }
}

TEST(SimulatorRuns, MeetAllThatTheyAreFor) {
  const RunsReport report = simulate_seeds(1, 60, 2);
  EXPECT_FALSE(report.failed_seed.has_value()) << report.failure;
  EXPECT_EQ(report.num_runs, 60);
  const SimulationCounts& counts = report.counts;
  EXPECT_EQ(counts.requests, counts.finished + counts.cancelled + counts.failed + counts.refused);
  EXPECT_GT(counts.finished, 3000);
  EXPECT_GT(counts.cancelled, 100);
  EXPECT_GT(counts.failed, 100);
  EXPECT_GT(counts.refused, 50);
  EXPECT_GT(counts.preemptions, 50);
  EXPECT_GT(counts.prefix_hits, 50);
  EXPECT_GT(counts.prefix_evictions, 1000);
  EXPECT_GT(counts.loads, 500);
  EXPECT_GT(counts.failed_loads, 10);
  EXPECT_GT(counts.device_evictions, 500);
  EXPECT_GT(counts.host_evictions, 100);
}

TEST(SimulatorRuns, CrashIsAFailureWithItsLastWords) {
  Trace no_room = random_trace(1);
  no_room.step_tokens = 0;
  const SimulationResult result = simulate_in_child(no_room);
  EXPECT_NE(result.failure.find("a step must hold at least one token"), std::string::npos) << result.failure;
  EXPECT_NE(result.failure.find("signal 6"), std::string::npos) << result.failure;
}

// Fails where one request for the base model is cancelled and another, for an adapter, has more than 10 tokens.
bool fails(const Trace& trace) {
  const auto is_cancelled = [](const TraceRequest& request) {
    return request.adapter < 0 && request.cancel_after_tokens > 0;
  };
  const auto is_long = [](const TraceRequest& request) { return request.adapter >= 0 && request.max_new_tokens > 10; };
  return std::any_of(trace.requests.begin(), trace.requests.end(), is_cancelled) &&
         std::any_of(trace.requests.begin(), trace.requests.end(), is_long);
}

TEST(SimulatorShrinking, LeavesWhatTheFailureNeeds) {
  Trace trace = random_trace(1);
  trace.requests.push_back({.arrival_us = 7, .adapter = 4, .own_tokens = 9, .max_new_tokens = 100, .priority = 2});
  trace.requests.push_back({.arrival_us = 9, .shared_tokens = 20, .cancel_after_tokens = 5});
  trace.replacements.push_back({.time_us = 4, .adapter = 5});
  trace.failed_steps.push_back(6);
  ASSERT_TRUE(fails(trace));
  const Trace smallest = shrink(trace, fails, 10'000);
  EXPECT_TRUE(fails(smallest));
  ASSERT_EQ(smallest.requests.size(), 2U);
  EXPECT_TRUE(smallest.replacements.empty());
  EXPECT_TRUE(smallest.failed_steps.empty());
  EXPECT_EQ(smallest.num_blocks, Trace().num_blocks);
  for (const TraceRequest& request : smallest.requests) {
    const bool is_long = request.adapter >= 0;
    EXPECT_EQ(request.max_new_tokens, is_long ? 11 : 1);
    EXPECT_EQ(request.cancel_after_tokens > 0, !is_long);
    EXPECT_EQ(request.own_tokens, 1);
    EXPECT_EQ(request.shared_tokens, 0);
  }
  EXPECT_EQ(shrink(trace, fails, 0), trace) << "no run is left to know it by";
}

TEST(SimulatorTraces, ArePrintedWithoutWhatIsAsByDefault) {
  Trace trace;
  trace.num_blocks = 9;
  trace.requests = {{.adapter = 3, .max_new_tokens = 5}, {}};
  trace.failed_steps = {2, 4};
  EXPECT_EQ(to_text(trace),
            "Trace{.num_blocks = 9, \n  .requests = {\n    {.adapter = 3, .max_new_tokens = 5},\n    {},}, \n"
            "  .failed_steps = {2, 4}}");
}

}  // namespace
}  // namespace shoal
