#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "scheduler/fake_engine.h"
#include "scheduler/scheduler.h"
#include "scheduler/test_client.h"

namespace shoal {
namespace {

enum class Fate { kRead, kCancelAtOnce, kCancelAfterTokens };

struct Live {
  Request request;
  TestClient client;
  Fate fate = Fate::kRead;
  std::size_t cancel_after = 0;
  bool cancelled = false;
};

Request random_request(std::mt19937_64& random) {
  const auto below = [&random](std::uint64_t limit) { return static_cast<std::int64_t>(random() % limit); };
  Request request{.prompt_ids = {}, .max_new_tokens = 1 + below(60), .sampling = {}, .adapter = {}, .stop = {}};
  // Half of the prompts begin like others: with one of three texts, cut anywhere.
  if (const std::int64_t text = below(6); text < 3) {
    for (std::int64_t n = 20 + below(40), i = 0; i < n; ++i) request.prompt_ids.push_back(text * 100 + i);
  }
  for (std::int64_t n = 1 + below(80) / (request.prompt_ids.empty() ? 1 : 4); n > 0; --n) {
    request.prompt_ids.push_back(below(1000));
  }
  request.sampling.seed = static_cast<std::uint64_t>(below(900));
  if (below(20) == 0) request.sampling.seed = FakeEngine::kNanSeed;
  if (below(3) == 0) request.sampling.frequency_penalty = 0.5F;
  const std::int64_t adapter = below(10);
  if (adapter >= 4) {
    static const char* const kIds[] = {"a", "b", "c", "slow-d", "slow-e", "slow-broken"};
    request.adapter = AdapterKey{.source = "local", .id = kIds[adapter - 4]};
  }
  return request;
}

// What was read must be the beginning of what the request gets alone, and all of it if it ended well.
void expect_right_tokens(const FakeEngine& engine, const Live& live) {
  std::vector<std::int64_t> solo = engine.solo_tokens(live.request);
  const std::vector<std::int64_t>& tokens = live.client.tokens;
  ASSERT_LE(tokens.size(), solo.size());
  if (live.client.finish.has_value()) {
    EXPECT_EQ(tokens.size(), solo.size());
  }
  solo.resize(tokens.size());
  EXPECT_EQ(tokens, solo);
  if (live.client.error.has_value()) {
    const bool broken = live.request.adapter.has_value() && live.request.adapter->id == "slow-broken";
    EXPECT_EQ(live.client.error->code, broken ? ErrorCode::kAdapterInvalid : ErrorCode::kGeneration);
    EXPECT_TRUE(broken || live.request.sampling.seed == FakeEngine::kNanSeed) << live.client.error->message;
  }
}

struct StressCase {
  std::uint64_t seed;
  std::int64_t num_blocks;
  std::int64_t budget;
  BlockOrder order;
  bool prefix_caching = false;
  std::int64_t sliding_window = 0;
  bool runs_ahead = false;
};

class SchedulerStress : public testing::TestWithParam<StressCase> {};

TEST_P(SchedulerStress, ThousandRequestsWithCancelsAtRandomStages) {
  const StressCase& test_case = GetParam();
  Wakeup wakeup;
  FakeEngine engine({.model_family = "fake",
                     .dtype = "float32",
                     .device = "cpu/fake",
                     .vocab_size = 1000,
                     .max_positions = 200,
                     .num_blocks = test_case.num_blocks,
                     .max_step_tokens = 128,
                     .max_sequences = 7,
                     .sliding_window = test_case.sliding_window,
                     .runs_beside_host = test_case.runs_ahead},
                    wakeup, {.device_bytes = 2 * BytePool::kAlignment, .host_bytes = 3 * BytePool::kAlignment});
  Scheduler scheduler(engine, wakeup, nullptr,
                      {.max_batch_prefill_tokens = test_case.budget,
                       .max_concurrent_requests = 40,
                       .adapter_cycle_time = std::chrono::milliseconds(1),
                       .block_order = test_case.order,
                       .prefix_caching = test_case.prefix_caching});
  // Steps of some length, as a model's: else most answers end before a cancel can reach them.
  engine.hold();
  const std::jthread pacer([&engine](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      engine.allow(1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    engine.resume();
  });
  std::mt19937_64 random(test_case.seed);
  std::vector<Live> live;
  int submitted = 0;
  int overloaded = 0;
  std::int64_t ended = 0;
  while (submitted < 1000 || !live.empty()) {
    if (submitted < 1000) {
      Request request = random_request(random);
      TestClient client(scheduler, request);
      if (client.accepted()) {
        ++submitted;
        live.push_back({.request = std::move(request),
                        .client = std::move(client),
                        .fate = static_cast<Fate>(random() % 3),
                        .cancel_after = random() % 30});
      } else {
        ASSERT_EQ(client.refusal().code, ErrorCode::kOverloaded);
        ++overloaded;
      }
    }
    if (random() % 4 == 0) engine.complete_load("slow-d");
    if (random() % 16 == 0 || submitted == 1000) engine.complete_load("slow-e");
    if (random() % 8 == 0) engine.fail_load("slow-broken", {ErrorCode::kAdapterInvalid, "broken"});
    std::erase_if(live, [&](Live& each) {
      const bool over = each.client.poll();
      const bool due = each.fate == Fate::kCancelAtOnce ||
                       (each.fate == Fate::kCancelAfterTokens && each.client.tokens.size() >= each.cancel_after);
      if (!over && due) {
        each.client.cancel();
        each.cancelled = true;
      }
      if (over || each.cancelled) {
        expect_right_tokens(engine, each);
        ++ended;
        return true;
      }
      return false;
    });
    if (overloaded % 8 == 7) std::this_thread::yield();
  }
  ASSERT_TRUE(scheduler.drain(std::chrono::milliseconds(60'000)));
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(ended, 1000);
  EXPECT_EQ(stats.finished + stats.cancelled + stats.failed, 1000);
  EXPECT_GT(stats.finished, 200);
  EXPECT_GT(stats.cancelled, 100);
  EXPECT_GT(stats.failed, 5);
  EXPECT_EQ(stats.queued, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(engine.num_pins(), 0);
  const AdapterTierStats tiers = engine.adapter_stats().tiers;
  EXPECT_EQ(tiers.pinned_bytes, 0);
  EXPECT_GT(tiers.device_evictions, 50);
  EXPECT_GT(tiers.host_evictions, 50);
  if (test_case.num_blocks < 20 && test_case.budget > 8) {  // else too few run together for it to be certain
    EXPECT_GT(stats.preemptions, 0);
  }
  EXPECT_EQ(stats.steps_ahead > 100, test_case.runs_ahead);
  if (test_case.prefix_caching) {
    EXPECT_GT(stats.prefix.hits, 50);
    EXPECT_GT(stats.prefix.hit_tokens, stats.prefix.hits * 15);
    EXPECT_GT(stats.prefix.evicted_blocks, 50);
    EXPECT_LT(stats.prefix.hits, stats.prefix.lookups);
  } else {
    EXPECT_EQ(stats.prefix.lookups, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, SchedulerStress,
    testing::Values(
        StressCase{.seed = 1, .num_blocks = 9, .budget = 16, .order = BlockOrder::kShuffled},
        StressCase{.seed = 2, .num_blocks = 12, .budget = 64, .order = BlockOrder::kAscending},
        StressCase{.seed = 3, .num_blocks = 16, .budget = 3, .order = BlockOrder::kShuffled},
        StressCase{.seed = 4, .num_blocks = 100, .budget = 128, .order = BlockOrder::kShuffled},
        StressCase{.seed = 5, .num_blocks = 13, .budget = 32, .order = BlockOrder::kShuffled, .prefix_caching = true},
        StressCase{.seed = 6, .num_blocks = 40, .budget = 64, .order = BlockOrder::kAscending, .prefix_caching = true},
        StressCase{.seed = 7,
                   .num_blocks = 24,
                   .budget = 48,
                   .order = BlockOrder::kShuffled,
                   .prefix_caching = true,
                   .sliding_window = 20},
        StressCase{.seed = 8, .num_blocks = 12, .budget = 64, .order = BlockOrder::kShuffled, .runs_ahead = true},
        StressCase{.seed = 9,
                   .num_blocks = 40,
                   .budget = 64,
                   .order = BlockOrder::kShuffled,
                   .prefix_caching = true,
                   .runs_ahead = true}));

}  // namespace
}  // namespace shoal
