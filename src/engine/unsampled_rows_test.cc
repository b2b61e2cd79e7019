// Scores and hidden states of the engine against the logits that teacher forcing gives for the same tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/block_size.h"
#include "core/thread_pool.h"
#include "engine/model_engine.h"
#include "engine/teacher_forcing.h"
#include "engine/test_no_source.h"
#include "ops/backends.h"
#include "weights/checkpoint.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

const char* const kModel = "tests/goldens/solar-10.7b-like";
constexpr std::int32_t kLength = 45;
constexpr double kTolerance = 1e-5;

class UnsampledRowsTest : public ::testing::Test {
 protected:
  UnsampledRowsTest() {
    EngineOptions options;
    options.model_path = kModel;
    options.kv_cache_bytes = std::int64_t{1} << 20;
    engine_.emplace(options, *backend_, source_, wakeup_);
    for (std::int32_t i = 0; i < kLength; ++i) ids_.push_back((i * 37 + 11) % 90);
    run_teacher_forcing(*engine_, {{.input_ids = ids_}}, {}, [&](std::size_t, std::int64_t, const Tensor& logits) {
      for (std::int64_t row = 0; row < kLength; ++row) {
        const float* values = logits.row<float>(row);
        logits_.emplace_back(values, values + engine_->info().vocab_size);
      }
    });
  }

  double logprob(std::size_t position, std::int64_t id) const {
    const std::vector<float>& row = logits_[position];
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(double{logit});
    return double{row[static_cast<std::size_t>(id)]} - std::log(sum);
  }
  std::vector<std::int64_t> by_likelihood(std::size_t position) const {
    std::vector<std::int64_t> order(logits_[position].size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return logits_[position][static_cast<std::size_t>(a)] > logits_[position][static_cast<std::size_t>(b)];
    });
    return order;
  }

  // The next `query` tokens of the prompt in one plan; the last chunk is sampled too.
  PlanSequence row_of(StepPlan& plan, std::int32_t cached, std::int32_t query, std::int32_t first_block) const {
    const bool is_last = cached + query == kLength;
    PlanSequence row{.state_slot = first_block / 4,
                     .input_begin = std::ssize(plan.input_ids),
                     .query_length = query,
                     .cached_length = cached,
                     .block_begin = std::ssize(plan.block_ids),
                     .num_blocks = static_cast<std::int32_t>(blocks_for_tokens(cached + query)),
                     .logit_rows = query,
                     .scored_rows = is_last ? query - 1 : query,
                     .target_begin = std::ssize(plan.target_ids),
                     .target_top = 3,
                     .score = ScoreKind::kModel,
                     .num_top = 2};
    plan.input_ids.insert(plan.input_ids.end(), ids_.begin() + cached, ids_.begin() + cached + query);
    for (std::int32_t i = 0; i < row.scored_rows; ++i) {
      plan.target_ids.push_back(ids_[static_cast<std::size_t>(cached) + static_cast<std::size_t>(i) + 1]);
    }
    for (std::int32_t block = 0; block < row.num_blocks; ++block) plan.block_ids.push_back(first_block + block);
    return row;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(default_isa(), pool_);
  NoSource source_;
  Wakeup wakeup_;
  std::optional<ModelEngine> engine_;
  std::vector<std::int64_t> ids_;
  std::vector<std::vector<float>> logits_;  // [kLength][vocab]
};

TEST_F(UnsampledRowsTest, ScoresOfAPromptAreThoseOfTeacherForcingInEveryChunking) {
  for (const std::int32_t chunk : {kLength, 16, 7, 1}) {
    std::vector<TokenScore> scores;
    std::int64_t sampled = -1;
    float sampled_logprob = 0.0F;
    TokenScore sampled_score;
    for (std::int32_t cached = 0; cached < kLength; cached += chunk) {
      StepPlan plan;
      // Beside it a row that is sampled, which must not be told from one that runs alone.
      plan.sequences.push_back({.state_slot = 1, .query_length = 1, .num_blocks = 1, .logit_rows = 1});
      plan.input_ids = {5};
      plan.block_ids = {4};
      plan.sequences.push_back(row_of(plan, cached, std::min(chunk, kLength - cached), 0));
      const StepResult& result = engine_->step(plan);
      ASSERT_EQ(result.targets.size(), plan.target_ids.empty() ? 0U : 1U);
      for (const TargetScores& targets : result.targets) {
        EXPECT_EQ(targets.sequence, 1);
        scores.insert(scores.end(), result.scores.begin() + targets.begin,
                      result.scores.begin() + targets.begin + targets.count);
      }
      const bool is_last = cached + chunk >= kLength;
      ASSERT_EQ(result.samples.size(), is_last ? 2U : 1U);
      EXPECT_EQ(result.samples[0].score, -1);
      if (!is_last) continue;
      sampled = result.samples[1].token;
      sampled_logprob = result.samples[1].logprob;
      sampled_score = result.scores.at(static_cast<std::size_t>(result.samples[1].score));
    }
    ASSERT_EQ(scores.size(), static_cast<std::size_t>(kLength - 1));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::vector<std::int64_t> order = by_likelihood(i);
      EXPECT_NEAR(scores[i].logprob, logprob(i, ids_[i + 1]), kTolerance) << "chunk " << chunk << ", token " << i + 1;
      EXPECT_EQ(order[static_cast<std::size_t>(scores[i].rank - 1)], ids_[i + 1]);
      ASSERT_EQ(scores[i].top.size(), 3U);
      for (std::size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(scores[i].top[k].id, order[k]);
        EXPECT_NEAR(scores[i].top[k].logprob, logprob(i, order[k]), kTolerance);
      }
    }
    EXPECT_EQ(sampled, by_likelihood(kLength - 1)[0]);
    EXPECT_NEAR(sampled_score.logprob, sampled_logprob, kTolerance);
    EXPECT_EQ(sampled_score.top[0].id, sampled);
    EXPECT_EQ(sampled_score.top[0].logprob, sampled_score.logprob) << "bit for bit: harnesses compare them";
    EXPECT_EQ(sampled_score.rank, 1);
  }
}

TEST_F(UnsampledRowsTest, BiasesMoveTheChoiceAndNotTheModelsScores) {
  const std::vector<std::int64_t> order = by_likelihood(kLength - 1);
  const auto sample = [&](std::vector<LogitBias> biases, ScoreKind kind) {
    StepPlan plan;
    PlanSequence row = row_of(plan, 0, kLength, 0);
    row.logit_rows = 1;
    row.scored_rows = 0;
    row.num_biases = static_cast<std::int32_t>(biases.size());
    row.score = kind;
    plan.target_ids.clear();
    plan.biases = std::move(biases);
    plan.sequences.push_back(row);
    const StepResult& result = engine_->step(plan);
    return std::pair(result.samples.at(0), result.scores.at(0));
  };
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<LogitBias> ban = {{.id = static_cast<std::int32_t>(order[0]), .value = kNever}};
  const auto [token, of_model] = sample(ban, ScoreKind::kModel);
  EXPECT_EQ(token.token, order[1]);
  EXPECT_EQ(of_model.rank, 2);
  EXPECT_EQ(of_model.top[0].id, order[0]);
  EXPECT_NEAR(of_model.logprob, logprob(kLength - 1, order[1]), kTolerance);
  const auto [same_token, of_sampled] = sample(ban, ScoreKind::kSampled);
  EXPECT_EQ(same_token.token, order[1]);
  EXPECT_EQ(of_sampled.rank, 1);
  EXPECT_EQ(of_sampled.top[0].id, order[1]);
  EXPECT_EQ(of_sampled.logprob, same_token.logprob);
  const double rest = std::log1p(-std::exp(logprob(kLength - 1, order[0])));
  EXPECT_NEAR(of_sampled.logprob, logprob(kLength - 1, order[1]) - rest, kTolerance);
  const std::vector<LogitBias> lift = {{.id = static_cast<std::int32_t>(order.back()), .value = 100.0F}};
  EXPECT_EQ(sample(lift, ScoreKind::kModel).first.token, order.back());
}

TEST_F(UnsampledRowsTest, ScoresOfSampledTokensFollowTheCuts) {
  StepPlan plan;
  PlanSequence row = row_of(plan, 0, kLength, 0);
  row.logit_rows = 1;
  row.scored_rows = 0;
  plan.target_ids.clear();
  row.score = ScoreKind::kSampled;
  row.num_top = 5;
  row.sampling = {.greedy = false, .temperature = 0.5F, .top_k = 3, .seed = 4};
  plan.sequences.push_back(row);
  const StepResult& result = engine_->step(plan);
  const std::vector<TokenLogprob>& top = result.scores.at(0).top;
  const std::vector<std::int64_t> order = by_likelihood(kLength - 1);
  ASSERT_EQ(top.size(), 5U);
  double sum = 0.0;
  for (std::size_t i = 0; i < 3; ++i) sum += std::exp(2.0 * logprob(kLength - 1, order[i]));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(top[i].id, order[i]);
    EXPECT_NEAR(top[i].logprob, 2.0 * logprob(kLength - 1, order[i]) - std::log(sum), kTolerance);
    if (order[i] == result.samples[0].token) {
      EXPECT_EQ(top[i].logprob, result.samples[0].logprob);
    }
  }
  EXPECT_EQ(top[3].logprob, -std::numeric_limits<float>::infinity()) << "what a cut dropped";
}

// What `hidden` says of the next token, by the checkpoint's own head.
std::vector<double> logits_of(std::span<const float> hidden) {
  const Checkpoint checkpoint = Checkpoint::open(kModel);
  const Tensor head = checkpoint.tensor("lm_head.weight");
  const std::vector<float> weights = float_values(head);
  const auto width = static_cast<std::size_t>(head.dim(1));
  EXPECT_EQ(hidden.size(), width);
  std::vector<double> logits(static_cast<std::size_t>(head.dim(0)));
  for (std::size_t id = 0; id < logits.size(); ++id) {
    for (std::size_t i = 0; i < width; ++i) logits[id] += double{weights[id * width + i]} * double{hidden[i]};
  }
  return logits;
}

TEST_F(UnsampledRowsTest, HiddenStatesAreWhatTheHeadMakesLogitsOf) {
  std::vector<float> whole;
  for (const std::int32_t chunk : {kLength, 16, 1}) {
    std::vector<float> hidden;
    for (std::int32_t cached = 0; cached < kLength; cached += chunk) {
      StepPlan plan;
      // Beside it rows that are sampled, before and after, and one that is scored.
      plan.sequences.push_back({.state_slot = 1, .query_length = 1, .num_blocks = 1, .logit_rows = 1});
      plan.input_ids = {5};
      plan.block_ids = {4};
      PlanSequence row = row_of(plan, cached, std::min(chunk, kLength - cached), 0);
      const bool is_last = cached + row.query_length == kLength;
      plan.target_ids.clear();
      row.scored_rows = 0;
      row.logit_rows = is_last ? 1 : 0;
      row.embed = true;
      plan.sequences.push_back(row);
      plan.sequences.push_back(row_of(plan, 0, kLength, 8));
      const StepResult& result = engine_->step(plan);
      ASSERT_EQ(result.samples.size(), 2U);
      EXPECT_EQ(result.samples[0].sequence, 0);
      EXPECT_EQ(result.samples[1].sequence, 2);
      EXPECT_EQ(result.samples[1].token, by_likelihood(kLength - 1)[0]);
      ASSERT_EQ(result.targets.size(), 1U);
      EXPECT_NEAR(result.scores[static_cast<std::size_t>(result.targets[0].begin)].logprob, logprob(0, ids_[1]),
                  kTolerance);
      ASSERT_EQ(result.embedded.size(), is_last ? 1U : 0U);
      if (!is_last) continue;
      EXPECT_EQ(result.embedded[0], 1);
      hidden = result.hidden;
    }
    const std::vector<double> logits = logits_of(hidden);
    ASSERT_EQ(logits.size(), logits_[kLength - 1].size());
    for (std::size_t id = 0; id < logits.size(); ++id) EXPECT_NEAR(logits[id], logits_[kLength - 1][id], 1e-4);
    if (whole.empty()) whole = hidden;
    EXPECT_EQ(hidden, whole) << "chunk " << chunk;
  }
}

TEST_F(UnsampledRowsTest, AStepOfHiddenStatesAloneSamplesNothing) {
  StepPlan plan;
  PlanSequence row = row_of(plan, 0, kLength, 0);
  plan.target_ids.clear();
  row.scored_rows = 0;
  row.logit_rows = 1;
  row.embed = true;
  plan.sequences.push_back(row);
  const StepResult& result = engine_->step(plan);
  EXPECT_TRUE(result.samples.empty());
  EXPECT_TRUE(result.scores.empty());
  const std::vector<double> logits = logits_of(result.hidden);
  for (std::size_t id = 0; id < logits.size(); ++id) EXPECT_NEAR(logits[id], logits_[kLength - 1][id], 1e-4);
}

}  // namespace
}  // namespace shoal
