#include "ops/ranking.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/op_test_util.h"
#include "ops/sampling_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Ranking {
  explicit Ranking(std::int64_t rows, std::int64_t num_top)
      : token_logit(DType::kFloat32, {rows}),
        rank(DType::kInt32, {rows}),
        largest(DType::kFloat32, {rows}),
        log_sum(DType::kFloat32, {rows}),
        top_ids(DType::kInt32, {rows, num_top}),
        top_logits(DType::kFloat32, {rows, num_top}) {}
  RankingOutput output() const {
    return {.token_logit = token_logit,
            .rank = rank,
            .largest = largest,
            .log_sum = log_sum,
            .top_ids = top_ids,
            .top_logits = top_logits};
  }
  HostTensor token_logit, rank, largest, log_sum, top_ids, top_logits;
};

std::vector<std::int32_t> ids_of(const HostTensor& ids) {
  const auto values = ids.view().span<std::int32_t>();
  return {values.begin(), values.end()};
}

class RankLogits : public BackendTest {
 protected:
  Ranking ranked(Context& context, const HostTensor& logits, std::int64_t vocab, const HostTensor& tokens,
                 std::int64_t num_top, std::int64_t extra = 0) {
    Ranking ranking(logits.view().dim(0), num_top);
    ops::rank_logits(context, logits, {.summed = vocab + extra, .ranked = vocab}, tokens, ranking.output());
    return ranking;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RankLogits, ::testing::ValuesIn(all_isas()), isa_test_name);

TEST_P(RankLogits, KnowsASmallRowByHeart) {
  const HostTensor logits = values_f32({2, 5}, {1.0F, 3.0F, 3.0F, -kInfinity, 9.0F, 0.0F, 0.0F, 0.0F, 0.0F, 9.0F});
  const Ranking got = ranked(ctx(), logits, 4, values_i64({0, -1}), 3);
  EXPECT_EQ(got.token_logit.at(0, 0), 1.0F);
  EXPECT_TRUE(std::isnan(got.token_logit.at(0, 1)));
  EXPECT_EQ(got.rank.view().data<std::int32_t>()[0], 3);
  EXPECT_EQ(got.rank.view().data<std::int32_t>()[1], 0);
  EXPECT_EQ(got.largest.at(0, 0), 3.0F);
  EXPECT_NEAR(got.log_sum.at(0, 0), std::log(2.0 + std::exp(-2.0)), tolerance(OpFamily::kLogprob));
  EXPECT_NEAR(got.log_sum.at(0, 1), std::log(4.0), tolerance(OpFamily::kLogprob));
  EXPECT_EQ(ids_of(got.top_ids), (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(got.top_logits.at(0, 2), 1.0F);
  // The column past the tokens takes part in the sum alone.
  const Ranking with_all = ranked(ctx(), logits, 4, values_i64({0, -1}), 3, 1);
  EXPECT_EQ(with_all.largest.at(0, 0), 9.0F);
  EXPECT_NEAR(with_all.log_sum.at(0, 0), std::log(1.0 + 2.0 * std::exp(-6.0) + std::exp(-8.0)),
              tolerance(OpFamily::kLogprob));
  EXPECT_EQ(with_all.rank.view().data<std::int32_t>()[0], 3);
  EXPECT_EQ(ids_of(with_all.top_ids), ids_of(got.top_ids));
}

TEST_P(RankLogits, MatchesTheReference) {
  RandomFill random(11);
  for (const std::int64_t vocab : {1, 2, 19, 20, 21, 64, 257, 5003, 32064}) {
    for (const std::int64_t num_top : {0, 1, 5, 20}) {
      const std::int64_t extra = num_top == 5 ? 2 : 0;
      const std::int64_t rows = vocab > 5000 ? 3 : 7;
      HostTensor logits = random.tensor(DType::kFloat32, {rows, vocab + 3}, Padding::kRows);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t id = 0; id < vocab + 3; ++id) {
          // Few different values: many ties. Past the vocabulary the largest of all.
          const float value = row % 2 == 0 ? std::round(logits.at(row, id) * 4.0F) : logits.at(row, id) * 9.0F;
          logits.set(row, id, id < vocab + extra ? value : 99.0F);
        }
      }
      HostTensor tokens(DType::kInt64, {rows});
      for (std::int64_t& token : tokens.view().span<std::int64_t>()) token = random.integer(-1, vocab);
      const Ranking got = ranked(ctx(), logits, vocab, tokens, num_top, extra);
      const Ranking want = ranked(reference_ctx(), logits, vocab, tokens, num_top, extra);
      const std::string where = fmt::format("vocab {}, {} top", vocab, num_top);
      EXPECT_EQ(ids_of(got.top_ids), ids_of(want.top_ids)) << where;
      expect_same_bits(got.top_logits, 0, want.top_logits, where);
      for (std::int64_t row = 0; row < rows; ++row) {
        EXPECT_EQ(got.rank.view().data<std::int32_t>()[row], want.rank.view().data<std::int32_t>()[row]) << where;
        EXPECT_EQ(got.largest.at(0, row), want.largest.at(0, row)) << where;
        EXPECT_NEAR(got.log_sum.at(0, row), want.log_sum.at(0, row), tolerance(OpFamily::kLogprob)) << where;
        if (tokens.view().data<std::int64_t>()[row] >= 0) {
          EXPECT_EQ(got.token_logit.at(0, row), want.token_logit.at(0, row)) << where;
        }
      }
    }
  }
}

TEST_P(RankLogits, ARowAloneHasTheBitsOfTheBatch) {
  RandomFill random(12);
  const HostTensor logits = random.tensor(DType::kFloat32, {9, 5003});
  const HostTensor tokens = values_i64({0, 5, 9, -1, 5002, 77, 3, 3, 3});
  const Ranking batch = ranked(ctx(), logits, 5003, tokens, 5);
  for (std::int64_t row = 0; row < 9; ++row) {
    Ranking alone(1, 5);
    ops::rank_logits(ctx(), logits.view().rows(row, 1), {.summed = 5003, .ranked = 5003}, tokens.view().rows(row, 1),
                     alone.output());
    EXPECT_EQ(std::bit_cast<std::uint32_t>(alone.log_sum.at(0, 0)),
              std::bit_cast<std::uint32_t>(batch.log_sum.at(0, row)));
    expect_same_bits(batch.top_logits, row, alone.top_logits, fmt::format("row {}", row));
  }
}

TEST_P(RankLogits, ANotANumberShowsInItsOwnRowAlone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const HostTensor logits = values_f32({3, 4}, {1, 2, 3, 4, 1, nan, 3, 4, 4, 3, 2, 1});
  const Ranking got = ranked(ctx(), logits, 4, values_i64({3, 3, 3}), 2);
  EXPECT_FALSE(std::isnan(got.log_sum.at(0, 0)));
  EXPECT_TRUE(std::isnan(got.log_sum.at(0, 1)));
  EXPECT_EQ(got.rank.view().data<std::int32_t>()[2], 4);
}

TEST_P(RankLogits, AcceptsNoRows) {
  const HostTensor logits(DType::kFloat32, {0, 4});
  const HostTensor tokens(DType::kInt64, {0});
  EXPECT_EQ(ranked(ctx(), logits, 4, tokens, 2).top_ids.view().dim(0), 0);
}

class Biases : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(All, Biases, ::testing::ValuesIn(all_isas()), isa_test_name);

TEST_P(Biases, AddToTheirRowsAlone) {
  HostTensor logits = values_f32({3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  std::vector<LogitBias> biases = {
      {.id = 3, .value = -2.5F}, {.id = 0, .value = -kInfinity}, {.id = 1, .value = 100.0F}};
  const Tensor bytes(biases.data(), DType::kUInt8, {static_cast<std::int64_t>(biases.size() * sizeof(LogitBias))});
  ops::add_biases(ctx(), values_i32({0, 2, 2, 3}), bytes, logits);
  const std::vector<float> want = {-kInfinity, 2, 3, 1.5F, 5, 6, 7, 8, 9, 110, 11, 12};
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(logits.at(i / 4, i % 4), want[static_cast<std::size_t>(i)]) << i;
  // None at all.
  ops::add_biases(ctx(), values_i32({0, 0, 0, 0}), bytes.rows(0, 0), logits);
  EXPECT_EQ(logits.at(2, 1), 110.0F);
}

TEST_P(Biases, ABannedTokenIsNeverSampled) {
  for (const bool greedy : {true, false}) {
    SamplingRow row{.logits = {9.0F, 1.0F, 0.5F}, .greedy = greedy};
    row.logits[0] += -kInfinity;
    for (std::int32_t position = 0; position < 50; ++position) {
      row.position = position;
      EXPECT_GT(sample_rows(ctx(), {row})[0].token, 0);
    }
  }
  const SamplingRow none{.logits = {-kInfinity, -kInfinity}, .greedy = true};
  EXPECT_EQ(sample_rows(ctx(), {none})[0].token, -1);
}

}  // namespace
}  // namespace shoal
