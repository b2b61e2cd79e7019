#include "scheduler/batch.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/allocation_counter.h"

namespace shoal {
namespace {

EngineInfo engine_info(std::int64_t num_blocks, std::int64_t max_sequences = 8) {
  return {.model_family = "fake",
          .dtype = "float32",
          .device = "cpu/fake",
          .vocab_size = 100,
          .max_positions = 1000,
          .num_blocks = num_blocks,
          .max_step_tokens = 100,
          .max_sequences = max_sequences};
}

struct Fixture {
  Fixture(const EngineInfo& info, const SchedulerOptions& options) : batch(info, options) {}

  Sequence& add(std::int64_t prompt_tokens, std::int64_t max_new_tokens) {
    Request request{.prompt_ids = std::vector<std::int64_t>(static_cast<std::size_t>(prompt_tokens), 1),
                    .max_new_tokens = max_new_tokens,
                    .sampling = {},
                    .adapter = std::nullopt,
                    .stop = {}};
    return add(std::move(request));
  }
  Sequence& add(Request request) {
    auto stream = std::make_shared<EventStream>(nullptr, wakeup);
    auto sequence = std::make_unique<Sequence>(std::move(request), std::move(stream), nullptr, batch.make_table());
    sequence->arrival = next_arrival++;
    waiting.push_back(std::move(sequence));
    return *waiting.back();
  }
  // Query lengths of the next step, in plan order; the step then runs and each row with logits gets a token.
  std::vector<std::int64_t> step() {
    std::vector<std::int64_t> lengths;
    for (const PlanSequence& row : batch.plan_step(waiting).sequences) lengths.push_back(row.query_length);
    finish_step();
    return lengths;
  }
  void finish_step() {
    batch.step_launched();
    batch.step_collected(true);
    batch.share_prefixes();
    for (Sequence* sequence : batch.planned()) {
      if (sequence->num_pending() != 0) continue;
      sequence->tokens.push_back(7);
      (void)sequence->answer.push(7, -1.0F);
    }
  }

  Wakeup wakeup;
  Batch batch;
  Sequences waiting;  // destroyed before the batch's allocator
  std::int64_t next_arrival = 0;
};

using Lengths = std::vector<std::int64_t>;

TEST(Batch, NothingToDoIsAnEmptyPlan) {
  Fixture fixture(engine_info(4), {});
  EXPECT_TRUE(fixture.step().empty());
}

TEST(Batch, NoRoomForOneTokenCannotStart) {
  EXPECT_THROW(Batch(engine_info(4), {.max_batch_prefill_tokens = 0}), StartError);
  EXPECT_THROW(Batch(engine_info(4, 0), {}), StartError);
}

TEST(Batch, DecodeRowsThenOneTokenChunksThenLongerOnes) {
  Fixture fixture(engine_info(40), {.max_batch_prefill_tokens = 10});
  fixture.add(3, 50);
  fixture.add(1, 50);
  EXPECT_EQ(fixture.step(), (Lengths{1, 3}));
  fixture.add(15, 50);
  fixture.add(4, 50);
  EXPECT_EQ(fixture.step(), (Lengths{1, 1, 8})) << "two rows decode, the rest of the budget is a chunk";
  EXPECT_EQ(fixture.step(), (Lengths{1, 1, 1, 7})) << "the next prompt gets the one token that is left";
}

TEST(Batch, OneTokenLeftOfAPromptGoesToTheFront) {
  Fixture fixture(engine_info(40), {.max_batch_prefill_tokens = 10});
  fixture.add(11, 50);
  fixture.add(30, 50);
  EXPECT_EQ(fixture.step(), (Lengths{10}));
  EXPECT_EQ(fixture.step(), (Lengths{1, 9}));
  EXPECT_FALSE(fixture.batch.plan_has_decode_rows()) << "the end of a prompt is no decode row";
  EXPECT_EQ(fixture.step(), (Lengths{1, 9}));
  EXPECT_TRUE(fixture.batch.plan_has_decode_rows());
}

TEST(Batch, RunsNoMoreSequencesThanTheBudgetHasTokens) {
  Fixture fixture(engine_info(40, 8), {.max_batch_prefill_tokens = 3});
  for (int i = 0; i < 6; ++i) fixture.add(1, 50);
  EXPECT_EQ(fixture.step(), (Lengths{1, 1, 1}));
  EXPECT_EQ(fixture.step(), (Lengths{1, 1, 1}));
  EXPECT_EQ(fixture.batch.num_running(), 3);
}

TEST(Batch, YoungestIsPreemptedAndKeepsItsPlaceInTheQueue) {
  Fixture fixture(engine_info(5), {});
  Sequence& oldest = fixture.add(16, 60);
  Sequence& youngest = fixture.add(15, 60);
  (void)fixture.step();
  Sequence& behind = fixture.add(60, 5);
  while (fixture.batch.num_preemptions() == 0) (void)fixture.step();
  ASSERT_EQ(fixture.waiting.size(), 2U);
  EXPECT_EQ(fixture.waiting[0].get(), &youngest);
  EXPECT_EQ(fixture.waiting[1].get(), &behind);
  EXPECT_EQ(youngest.num_cached, 0);
  EXPECT_EQ(youngest.blocks.num_blocks(), 0);
  EXPECT_EQ(youngest.state_slot, -1);
  EXPECT_GT(youngest.num_generated(), 0) << "what it generated is kept";
  EXPECT_EQ(fixture.batch.running().size(), 1U);
  EXPECT_EQ(fixture.batch.running()[0].get(), &oldest);
}

TEST(Batch, PreemptsTheYoungestOfTheLowestPriority) {
  Fixture fixture(engine_info(9), {});
  Sequence& older = fixture.add(16, 60);
  Sequence& younger = fixture.add(16, 60);
  (void)fixture.step();
  Sequence& high = fixture.add(16, 60);  // the last to come
  high.priority = 1;
  (void)fixture.step();
  ASSERT_EQ(fixture.batch.num_running(), 3);
  while (fixture.batch.num_preemptions() == 0) (void)fixture.step();
  ASSERT_EQ(fixture.waiting.size(), 1U);
  EXPECT_EQ(fixture.waiting[0].get(), &younger);
  while (fixture.batch.num_preemptions() == 1) (void)fixture.step();
  ASSERT_EQ(fixture.waiting.size(), 2U);
  EXPECT_EQ(fixture.waiting[0].get(), &older);
  EXPECT_EQ(fixture.waiting[1].get(), &younger);
  EXPECT_EQ(fixture.batch.running()[0].get(), &high);
}

TEST(Batch, AdmissionLeavesABlockForEachRunningSequence) {
  Fixture fixture(engine_info(6), {});
  fixture.add(16, 60);
  (void)fixture.step();
  fixture.add(64, 5);  // 4 of 5 free blocks, and the running one is about to take its second
  (void)fixture.step();
  EXPECT_EQ(fixture.batch.num_running(), 1);
  fixture.add(1, 5);
  (void)fixture.step();
  EXPECT_EQ(fixture.batch.num_running(), 1) << "nobody overtakes the one that waits for blocks";
}

TEST(Batch, HistoryComesWithEachStartOnly) {
  Fixture fixture(engine_info(8), {.max_batch_prefill_tokens = 8});
  Sequence& sequence = fixture.add(20, 50);
  sequence.request.sampling.presence_penalty = 1.0F;
  const auto next_history = [&fixture] {
    const std::int32_t length = fixture.batch.plan_step(fixture.waiting).sequences.at(0).history_length;
    fixture.finish_step();
    return length;
  };
  EXPECT_EQ(next_history(), 20) << "the whole prompt with its first chunk";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(next_history(), 0);
  fixture.waiting.push_back(std::move(fixture.batch.running()[0]));
  fixture.batch.running().clear();
  fixture.batch.give_back(sequence);
  EXPECT_EQ(next_history(), sequence.num_tokens()) << "prompt and output after a restart";
}

TEST(Batch, PreemptedSequenceFindsItsOwnBlocksAndGetsItsHistory) {
  Fixture fixture(engine_info(8), {.prefix_caching = true});
  Sequence& sequence = fixture.add(40, 50);
  sequence.request.sampling.presence_penalty = 1.0F;
  for (int i = 0; i < 10; ++i) (void)fixture.step();
  fixture.waiting.push_back(std::move(fixture.batch.running()[0]));
  fixture.batch.running().clear();
  fixture.batch.give_back(sequence);
  EXPECT_EQ(fixture.batch.num_used_blocks(), 0);
  EXPECT_EQ(fixture.batch.prefix_stats().cached_blocks, 3) << "49 of 50 tokens were computed";
  const PlanSequence row = fixture.batch.plan_step(fixture.waiting).sequences.at(0);
  EXPECT_EQ(row.cached_length, 48);
  EXPECT_EQ(row.query_length, 2);
  EXPECT_EQ(row.history_length, 50);
  EXPECT_EQ(sequence.num_prompt_hits, 0) << "what the request found when it started";
}

TEST(Batch, LastBlockOfAPromptOfWholeBlocksIsComputedAgain) {
  Fixture fixture(engine_info(20), {.prefix_caching = true});
  fixture.add(48, 5);
  (void)fixture.step();
  fixture.add(48, 5);
  EXPECT_EQ(fixture.step(), (Lengths{1, 16}));
  EXPECT_EQ(fixture.batch.num_used_blocks(), 4) << "three that both hold, and one of the first answer";
}

TEST(Batch, EndTokensAreBannedUntilTheAnswerIsLongEnough) {
  Fixture fixture(engine_info(8), {.max_batch_prefill_tokens = 8});
  Request request{.prompt_ids = std::vector<std::int64_t>(12, 1),
                  .max_new_tokens = 10,
                  .sampling = {},
                  .adapter = std::nullopt,
                  .stop = {}};
  request.stop_token_ids = {4, 9};
  request.min_new_tokens = 2;
  request.logit_bias = {{.id = 3, .value = 1.5F}, {.id = 9, .value = 100.0F}};
  fixture.add(std::move(request));
  const auto next_biases = [&fixture] {
    const StepPlan& plan = fixture.batch.plan_step(fixture.waiting);
    std::vector<std::pair<std::int64_t, float>> biases;
    biases.reserve(plan.biases.size());
    for (const LogitBias& bias : plan.biases) biases.emplace_back(bias.id, bias.value);
    EXPECT_EQ(plan.sequences.at(0).num_biases, std::ssize(biases));
    fixture.finish_step();
    return biases;
  };
  using Biases = std::vector<std::pair<std::int64_t, float>>;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(next_biases(), Biases()) << "a chunk that samples nothing";
  EXPECT_EQ(next_biases(), (Biases{{3, 1.5F}, {4, kNever}, {9, kNever}}));
  EXPECT_EQ(next_biases(), (Biases{{3, 1.5F}, {4, kNever}, {9, kNever}}));
  EXPECT_EQ(next_biases(), (Biases{{3, 1.5F}, {9, 100.0F}}));
}

class BatchAllocation : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PrefixCaching, BatchAllocation, testing::Bool());

TEST_P(BatchAllocation, DecodeStepAllocatesNothing) {
  Fixture fixture(engine_info(200), {.prefix_caching = GetParam()});
  for (int i = 0; i < 8; ++i) fixture.add(5 + i, 200);
  for (int i = 0; i < 4; ++i) (void)fixture.step();
  const std::int64_t before = test::num_allocations();
  for (int i = 0; i < 150; ++i) {  // crosses many block borders
    ASSERT_EQ(fixture.batch.plan_step(fixture.waiting).sequences.size(), 8U);
    fixture.finish_step();
  }
  EXPECT_EQ(test::num_allocations(), before);
  fixture.add(1, 1);
  EXPECT_GT(test::num_allocations(), before) << "the counter counts";
}

}  // namespace
}  // namespace shoal
