// A step that was launched behind another takes its samples without their way over the host: the same tokens, logprobs
// and scores as one step after another gives.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "core/block_size.h"
#include "core/thread_pool.h"
#include "engine/model_engine.h"
#include "engine/test_no_source.h"
#include "ops/backends.h"

namespace shoal {
namespace {

constexpr std::int32_t kSequences = 5;
constexpr std::int32_t kPrompt = 11;
constexpr std::int32_t kBlocksEach = 4;
constexpr int kSteps = 40;

// What a step samples: tokens, logprobs, and of the scores rank and the three likeliest.
struct Sampled {
  std::vector<std::int64_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::tuple<float, std::int32_t, std::int64_t, std::int64_t, std::int64_t>> scores;
  bool operator==(const Sampled&) const = default;
};

Sampled read(const StepResult& result) {
  Sampled sampled;
  for (const SampledToken& sample : result.samples) {
    sampled.tokens.push_back(sample.token);
    sampled.logprobs.push_back(sample.logprob);
    if (sample.score < 0) continue;
    const TokenScore& score = result.scores.at(static_cast<std::size_t>(sample.score));
    sampled.scores.emplace_back(score.logprob, score.rank, score.top.at(0).id, score.top.at(1).id, score.top.at(2).id);
  }
  return sampled;
}

// Of greedy and of drawn tokens, with penalties and with a bias; the last sequence ends early.
class StepsAheadTest : public testing::Test {
 protected:
  StepsAheadTest() {
    options.model_path = "tests/goldens/solar-10.7b-like";
    options.kv_cache_bytes = std::int64_t{8} << 20;
  }

  static PlanSequence row_of(std::int32_t index, std::int32_t cached, std::int32_t query, StepPlan& plan) {
    PlanSequence row{.state_slot = index,
                     .input_begin = static_cast<std::int64_t>(plan.input_ids.size()),
                     .query_length = query,
                     .cached_length = cached,
                     .block_begin = static_cast<std::int64_t>(plan.block_ids.size()),
                     .num_blocks = static_cast<std::int32_t>(blocks_for_tokens(cached + query)),
                     .logit_rows = 1};
    if (index % 2 == 1) row.sampling = {.greedy = false, .temperature = 0.9F, .top_k = 30, .seed = 5};
    if (index == 2) row.sampling.repetition_penalty = 1.3F;
    if (index == 3 || index == 4) row.sampling.watermark_gamma = 0.5F;
    if (index == 3 || index == 4) row.sampling.watermark_delta = 5.0F;
    if (index == 1) row.score = ScoreKind::kSampled;
    if (index == 3) row.score = ScoreKind::kModel;
    row.num_top = row.score == ScoreKind::kNone ? 0 : 3;
    for (std::int32_t block = 0; block < row.num_blocks; ++block) plan.block_ids.push_back(index * kBlocksEach + block);
    if (index == 4) {
      row.bias_begin = static_cast<std::int64_t>(plan.biases.size());
      row.num_biases = 1;
      plan.biases.push_back({.id = 17, .value = 2.0F});
    }
    return row;
  }

  static void plan_prompts(StepPlan& plan) {
    plan.clear();
    for (std::int32_t i = 0; i < kSequences; ++i) {
      PlanSequence row = row_of(i, 0, kPrompt, plan);
      for (std::int32_t token = 0; token < kPrompt; ++token) plan.input_ids.push_back((token * 7 + i) % 90);
      if (row.sampling.has_penalties()) {
        row.history_length = row.history_prompt_length = kPrompt;
        plan.history_ids.assign(plan.input_ids.end() - kPrompt, plan.input_ids.end());
      }
      plan.sequences.push_back(row);
    }
  }

  // The step `number` of one token each; the second sequence is not in it after the tenth. `known`: the samples of
  // the step before, null where it still runs.
  static void plan_decode(int number, const Sampled* known, StepPlan& plan) {
    plan.clear();
    std::int32_t source = 0;
    for (std::int32_t i = 0; i < kSequences; ++i) {
      if (i == 1 && number > 10) {
        source += number == 11 ? 1 : 0;  // it was in the step before
        continue;
      }
      PlanSequence row = row_of(i, kPrompt + number - 1, 1, plan);
      if (known != nullptr) {
        plan.input_ids.push_back(known->tokens.at(static_cast<std::size_t>(source)));
      } else {
        row.source = TokenSource::kPreviousSample;
        row.source_row = source;
      }
      plan.sequences.push_back(row);
      ++source;
    }
  }

  ThreadPool pool{2};
  const std::unique_ptr<Backend> backend = make_cpu_backend(default_isa(), pool);
  NoSource source;
  Wakeup wakeup;
  EngineOptions options;
};

TEST_F(StepsAheadTest, GiveWhatOneAfterAnotherGives) {
  std::vector<Sampled> in_turn;
  {
    ModelEngine engine(options, *backend, source, wakeup);
    StepPlan plan;
    plan_prompts(plan);
    in_turn.push_back(read(engine.step(plan)));
    for (int number = 1; number < kSteps; ++number) {
      plan_decode(number, &in_turn.back(), plan);
      in_turn.push_back(read(engine.step(plan)));
    }
  }
  ModelEngine engine(options, *backend, source, wakeup);
  std::vector<Sampled> ahead;
  StepPlan plans[2];
  plan_prompts(plans[0]);
  engine.launch(plans[0]);
  for (int number = 1; number < kSteps; ++number) {
    StepPlan& plan = plans[number % 2];
    plan_decode(number, nullptr, plan);
    engine.launch(plan);
    ahead.push_back(read(engine.collect()));
  }
  ahead.push_back(read(engine.collect()));
  EXPECT_EQ(ahead, in_turn);
  EXPECT_EQ(in_turn.back().tokens.size(), std::size_t{kSequences - 1});
  EXPECT_EQ(in_turn.front().scores.size(), 2U);
}

}  // namespace
}  // namespace shoal
