// The prefix cache under the scheduler. The fake engine fails on any row that reads another text than its own.
#include <gtest/gtest.h>

#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using test::request_of;
using test::small_engine;
using test::with_adapter;

struct Fixture : test::SchedulerFixture {
  explicit Fixture(const EngineInfo& info = small_engine(), std::int64_t budget = 256)
      : SchedulerFixture(info, {.max_batch_prefill_tokens = budget, .prefix_caching = true}) {}

  // Runs it to its end; the prompt tokens that were found in the cache.
  std::int64_t hit(const Request& request) {
    TestClient client = submit(request);
    client.wait_for_end();
    EXPECT_TRUE(client.finish.has_value());
    EXPECT_EQ(client.tokens, engine.solo_tokens(request));
    return client.finish->cached_tokens.value();
  }
};

TEST(PrefixCache, PromptStartsBehindWhatIsThere) {
  Fixture fixture;
  EXPECT_EQ(fixture.hit(request_of(100, 5)), 0);
  EXPECT_EQ(fixture.hit(request_of(100, 5)), 96);
  EXPECT_EQ(fixture.hit(request_of(70, 5)), 64);
  EXPECT_EQ(fixture.hit(request_of(96, 5)), 80) << "the last token is computed, and its block with it";
  Request other_end = request_of(100, 5);
  other_end.prompt_ids[50] = 7;
  EXPECT_EQ(fixture.hit(other_end), 48);
  const SchedulerStats stats = fixture.scheduler.stats();
  EXPECT_EQ(stats.prefix.lookups, 5);
  EXPECT_EQ(stats.prefix.hits, 4);
  EXPECT_EQ(stats.prefix.hit_tokens, 96 + 64 + 80 + 48);
  EXPECT_GT(stats.prefix.cached_blocks, 6);
  fixture.expect_all_given_back();
}

TEST(PrefixCache, AnswersAreFoundToo) {
  Fixture fixture;
  Request first = request_of(20, 60);
  EXPECT_EQ(fixture.hit(first), 0);
  Request next_turn = first;
  for (const std::int64_t id : fixture.engine.solo_tokens(first)) next_turn.prompt_ids.push_back(id);
  for (std::int64_t id = 0; id < 10; ++id) next_turn.prompt_ids.push_back(id);
  EXPECT_EQ(fixture.hit(next_turn), 64) << "79 tokens of the first turn were computed";
}

TEST(PrefixCache, AdaptersAndTenantsShareNothing) {
  Fixture fixture;
  EXPECT_EQ(fixture.hit(request_of(50, 3)), 0);
  EXPECT_EQ(fixture.hit(with_adapter(request_of(50, 3), "a")), 0);
  EXPECT_EQ(fixture.hit(with_adapter(request_of(50, 3), "b")), 0);
  Request of_tenant = with_adapter(request_of(50, 3), "a");
  of_tenant.cache_salt = "tenant";
  EXPECT_EQ(fixture.hit(of_tenant), 0);
  EXPECT_EQ(fixture.hit(of_tenant), 48);
  EXPECT_EQ(fixture.hit(with_adapter(request_of(50, 3), "a")), 48);
  EXPECT_EQ(fixture.hit(request_of(50, 3)), 48);
}

TEST(PrefixCache, ReplacedAdapterFindsNothingOfTheOldOne) {
  Fixture fixture;
  const Request request = with_adapter(request_of(50, 3), "a");
  EXPECT_EQ(fixture.hit(request), 0);
  EXPECT_EQ(fixture.hit(request), 48);
  const std::vector<std::int64_t> old_tokens = fixture.engine.solo_tokens(request);
  fixture.engine.replace_adapter("a");
  EXPECT_NE(fixture.engine.solo_tokens(request), old_tokens);
  EXPECT_EQ(fixture.hit(request), 0);
  EXPECT_EQ(fixture.hit(request), 48);
}

TEST(PrefixCache, FailedStepsLeaveNothingBehind) {
  Fixture fixture;
  fixture.engine.fail_next_step("broken");
  TestClient failed = fixture.submit(request_of(50, 3));
  failed.wait_for_end();
  EXPECT_TRUE(failed.error.has_value());
  EXPECT_EQ(fixture.hit(request_of(50, 3)), 0);
  Request not_a_number = request_of(60, 3, 500);
  not_a_number.sampling.seed = FakeEngine::kNanSeed;
  TestClient bad = fixture.submit(not_a_number);
  bad.wait_for_end();
  EXPECT_TRUE(bad.error.has_value());
  EXPECT_EQ(fixture.hit(request_of(60, 3, 500)), 0);
  fixture.expect_all_given_back();
}

TEST(PrefixCache, WindowLeavesOutTheBlocksBeforeIt) {
  EngineInfo info = small_engine();
  info.sliding_window = 32;
  info.num_blocks = 20;
  Fixture fixture(info);
  EXPECT_EQ(fixture.hit(request_of(150, 3)), 0);
  EXPECT_EQ(fixture.hit(request_of(150, 3)), 144);
  EXPECT_EQ(fixture.hit(request_of(270, 3, 5000)), 0) << "17 blocks: evicts all but the newest";
  EXPECT_EQ(fixture.hit(request_of(150, 3)), 144) << "the two blocks of the window were used last";
  EXPECT_GT(fixture.scheduler.stats().prefix.evicted_blocks, 0);
  fixture.expect_all_given_back();
}

TEST(PrefixCache, OneThatFillsTheWholeCacheEvictsAllOthers) {
  EngineInfo info = small_engine();
  info.num_blocks = 10;
  Fixture fixture(info, 32);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(fixture.hit(request_of(40, 3, i * 100)), 0);
  EXPECT_EQ(fixture.hit(request_of(150, 10, 900)), 0);
  EXPECT_EQ(fixture.hit(request_of(40, 3)), 0);
  fixture.expect_all_given_back();
}

}  // namespace
}  // namespace shoal
