#include "ops/sampling.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "ops/op_test_util.h"
#include "ops/random.h"
#include "ops/sampling_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits of these probabilities.
std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<float> random_logits(RandomFill& random, std::int64_t vocab, float spread) {
  std::vector<float> logits;
  logits.reserve(static_cast<std::size_t>(vocab));
  for (std::int64_t i = 0; i < vocab; ++i) logits.push_back(random.uniform(-spread, spread));
  return logits;
}

class Sample : public BackendTest {
 protected:
  Sampled one(const SamplingRow& row) { return sample_rows(ctx(), {row})[0]; }

  // How often each id comes up over many positions.
  std::vector<std::int64_t> histogram(SamplingRow row, std::int64_t draws) {
    std::vector<std::int64_t> hits(row.logits.size(), 0);
    std::vector<SamplingRow> rows;
    for (std::int64_t i = 0; i < draws; ++i) {
      row.position = static_cast<std::int32_t>(i);
      rows.push_back(row);
    }
    for (const Sampled& sampled : sample_rows(ctx(), rows)) {
      if (sampled.token >= 0) ++hits[static_cast<std::size_t>(sampled.token)];
    }
    return hits;
  }

  // The ids that come up at all.
  std::set<std::int64_t> support(const SamplingRow& row, std::int64_t draws = 400) {
    std::set<std::int64_t> ids;
    const std::vector<std::int64_t> hits = histogram(row, draws);
    for (std::int64_t id = 0; id < std::ssize(hits); ++id) {
      if (hits[static_cast<std::size_t>(id)] > 0) ids.insert(id);
    }
    return ids;
  }

  void expect_chi_square_fits(const SamplingRow& row, const std::vector<double>& expected) {
    constexpr std::int64_t kDraws = 20000;
    const std::vector<std::int64_t> hits = histogram(row, kDraws);
    double chi_square = 0.0;
    double freedom = -1.0;
    for (std::size_t id = 0; id < hits.size(); ++id) {
      const double mean = expected[id] * static_cast<double>(kDraws);
      if (mean == 0.0) {
        EXPECT_EQ(hits[id], 0) << "id " << id;
        continue;
      }
      chi_square += (static_cast<double>(hits[id]) - mean) * (static_cast<double>(hits[id]) - mean) / mean;
      freedom += 1.0;
    }
    // Mean plus four standard deviations; a fixed seed makes the outcome fixed too.
    EXPECT_LT(chi_square, freedom + 4.0 * std::sqrt(2.0 * freedom));
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Sample, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class SampleSweep : public Sample {};

INSTANTIATE_TEST_SUITE_P(Backends, SampleSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST(Philox, GivesThePublishedNumbers) {
  // Known answers of the Random123 distribution.
  const std::array<std::uint32_t, 4> zeros{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U};
  EXPECT_EQ(philox4x32(0, {0, 0, 0, 0}), zeros);
  const std::array<std::uint32_t, 4> ones{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU};
  EXPECT_EQ(philox4x32(~std::uint64_t{0}, {~0U, ~0U, ~0U, ~0U}), ones);
  const std::array<std::uint32_t, 4> pi{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U};
  EXPECT_EQ(philox4x32(0x299f31d0a4093822U, {0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}), pi);
}

TEST(Philox, UniformNumbersStayBelowOne) {
  EXPECT_EQ(uniform_random(0, 0), static_cast<float>(0x6627e8U) * 0x1p-24F);
  double sum = 0.0;
  for (std::int32_t position = 0; position < 10000; ++position) {
    const float u = uniform_random(-7, position);
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    sum += double{u};
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST_P(Sample, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(one({.logits = {1, 5, 3, 5}, .greedy = true}).token, 1);
  EXPECT_EQ(one({.logits = {-3}, .greedy = true}).token, 0);
  EXPECT_EQ(one({.logits = {-kInfinity, -1e30F, -kInfinity}, .greedy = true}).token, 1);
  std::vector<float> wide(100, 0.0F);
  wide[37] = wide[69] = wide[99] = 2.0F;
  EXPECT_EQ(one({.logits = wide, .greedy = true}).token, 37);
}

TEST_P(Sample, GreedyLogprobIgnoresTemperatureAndCuts) {
  const Sampled sampled = one({.logits = logits_of({0.1, 0.6, 0.3}),
                               .greedy = true,
                               .temperature = 0.01F,
                               .top_k = 1,
                               .top_p = 0.1F,
                               .typical_p = 0.1F,
                               .min_p = 0.9F});
  EXPECT_EQ(sampled.token, 1);
  EXPECT_NEAR(sampled.logprob, std::log(0.6), tolerance(OpFamily::kLogprob));
}

TEST_P(Sample, PenaltiesFollowTheirFormulas) {
  SamplingRow row{.logits = {2, -1, 1, 0},
                  .greedy = true,
                  .repetition_penalty = 2.0F,
                  .frequency_penalty = 0.25F,
                  .presence_penalty = 0.5F,
                  .counts = {2, 1, kSeenInPrompt, 0}};
  // 2 / 2 - 2 * 0.25 - 0.5 = 0; -1 * 2 - 0.25 - 0.5 = -2.75; 1 / 2 = 0.5 (prompt only); 0.
  const double total = std::exp(0.0) + std::exp(-2.75) + std::exp(0.5) + std::exp(0.0);
  Sampled sampled = one(row);
  EXPECT_EQ(sampled.token, 2);
  EXPECT_NEAR(sampled.logprob, 0.5 - std::log(total), tolerance(OpFamily::kLogprob));
  row.counts[2] = kSeenInPrompt + 1;  // in both: 0.5 - 0.25 - 0.5
  sampled = one(row);
  EXPECT_EQ(sampled.token, 0);
  row.counts.clear();
  EXPECT_EQ(one(row).token, 0);
  EXPECT_NEAR(one(row).logprob, 2 - std::log(std::exp(2.0) + std::exp(-1.0) + std::exp(1.0) + 1.0),
              tolerance(OpFamily::kLogprob));
}

TEST_P(Sample, MaskAllowsOnlyItsTokens) {
  std::vector<float> logits(70, 0.0F);
  logits[3] = 9.0F;
  const SamplingRow row{.logits = logits, .allowed = {0, 31, 32, 69}};
  EXPECT_EQ(support(row), (std::set<std::int64_t>{0, 31, 32, 69}));
  EXPECT_NEAR(one(row).logprob, std::log(0.25), tolerance(OpFamily::kLogprob));
  SamplingRow greedy = row;
  greedy.greedy = true;
  EXPECT_EQ(one(greedy).token, 0);
  EXPECT_NEAR(one(greedy).logprob, std::log(0.25), tolerance(OpFamily::kLogprob));
}

TEST_P(Sample, TopKKeepsTiesAndClampsToTheVocabulary) {
  const std::vector<float> logits{0, 2, 1, 1, -1};
  EXPECT_EQ(support({.logits = logits, .top_k = 1}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .top_k = 2}), (std::set<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(support({.logits = logits, .top_k = 3}), (std::set<std::int64_t>{1, 2, 3}));
  for (const std::int32_t k : {0, 5, 6, 1000000, std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_EQ(support({.logits = logits, .top_k = k}), (std::set<std::int64_t>{0, 1, 2, 3, 4})) << k;
  }
  EXPECT_EQ(support({.logits = {-kInfinity, 1, -kInfinity, 1}, .top_k = 3}), (std::set<std::int64_t>{1, 3}));
}

TEST_P(Sample, TopPKeepsTheSmallestSetThatReachesTheMass) {
  const std::vector<float> logits = logits_of({0.1, 0.5, 0.25, 0.15});
  EXPECT_EQ(support({.logits = logits, .top_p = 1e-6F}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .top_p = 0.0F}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .top_p = 0.49F}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .top_p = 0.51F}), (std::set<std::int64_t>{1, 2}));
  EXPECT_EQ(support({.logits = logits, .top_p = 0.8F}), (std::set<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(support({.logits = logits, .top_p = 0.95F}), (std::set<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(one({.logits = logits, .top_p = 1e-6F}).logprob, 0.0F);
  // After top-k 2 the mass is taken of what that left: 0.5 of 0.75 is 0.667.
  EXPECT_EQ(support({.logits = logits, .top_k = 2, .top_p = 0.6F}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .top_k = 2, .top_p = 0.7F}), (std::set<std::int64_t>{1, 2}));
}

TEST_P(Sample, TypicalKeepsWhatIsNearestToTheEntropy) {
  // Entropy 1.2425; distances of the surprise to it: 0.549, 0.144, 0.655, 1.060.
  const std::vector<float> logits = logits_of({0.5, 0.25, 0.15, 0.1});
  EXPECT_EQ(support({.logits = logits, .typical_p = 0.01F}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(support({.logits = logits, .typical_p = 0.3F}), (std::set<std::int64_t>{0, 1}));
  EXPECT_EQ(support({.logits = logits, .typical_p = 0.8F}), (std::set<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(support({.logits = logits, .typical_p = 0.99F}), (std::set<std::int64_t>{0, 1, 2, 3}));
  EXPECT_NEAR(one({.logits = logits, .typical_p = 0.01F}).logprob, 0.0F, tolerance(OpFamily::kLogprob));
}

TEST_P(Sample, MinPDropsWhatIsFarBelowTheLargest) {
  const std::vector<float> logits = logits_of({0.1, 0.5, 0.25, 0.15});
  EXPECT_EQ(support({.logits = logits, .min_p = 0.25F}), (std::set<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(support({.logits = logits, .min_p = 0.4F}), (std::set<std::int64_t>{1, 2}));
  EXPECT_EQ(support({.logits = logits, .min_p = 1.0F}), (std::set<std::int64_t>{1}));
}

TEST_P(Sample, TinyTemperatureTakesTheLargest) {
  for (const float temperature : {1e-4F, 1e-20F, std::numeric_limits<float>::min()}) {
    const Sampled sampled = one({.logits = {1, 3, 2, -50}, .temperature = temperature, .top_p = 1e-4F});
    EXPECT_EQ(sampled.token, 1) << temperature;
    EXPECT_EQ(sampled.logprob, 0.0F) << temperature;
  }
}

TEST_P(Sample, HugeTemperatureIsUniform) {
  EXPECT_NEAR(one({.logits = {1, 3, 2, -50}, .temperature = 1e8F}).logprob, std::log(0.25), 1e-5);
}

TEST_P(Sample, RowsThatCannotBeSampledHarmNoOther) {
  const std::vector<float> good = logits_of({0.1, 0.5, 0.25, 0.15});
  const SamplingRow fine{.logits = good, .seed = 3, .position = 4};
  const SamplingRow greedy{.logits = good, .greedy = true};
  const Sampled fine_alone = one(fine);
  std::vector<SamplingRow> broken;
  for (const bool is_greedy : {false, true}) {
    broken.push_back({.logits = {0, kNan, 1, 2}, .greedy = is_greedy});
    broken.push_back({.logits = {kNan, kNan, kNan, kNan}, .greedy = is_greedy});
    broken.push_back({.logits = {0, 1, 2, kNan}, .greedy = is_greedy, .allowed = {0}});
    broken.push_back({.logits = {0, kInfinity, 1, 2}, .greedy = is_greedy});
    broken.push_back({.logits = {-kInfinity, -kInfinity, -kInfinity, -kInfinity}, .greedy = is_greedy});
    broken.push_back({.logits = {0, 1, 2, 3}, .greedy = is_greedy, .allowed = {}});
    broken.push_back({.logits = {0, 1, -kInfinity, 3}, .greedy = is_greedy, .allowed = {2}});
  }
  std::vector<SamplingRow> rows;
  for (const SamplingRow& row : broken) rows.insert(rows.end(), {fine, row, greedy});
  const std::vector<Sampled> sampled = sample_rows(ctx(), rows);
  for (std::size_t i = 0; i < broken.size(); ++i) {
    EXPECT_EQ(sampled[3 * i].token, fine_alone.token);
    EXPECT_EQ(sampled[3 * i].logprob, fine_alone.logprob);
    EXPECT_EQ(sampled[3 * i + 1].token, -1) << i;
    EXPECT_TRUE(std::isnan(sampled[3 * i + 1].logprob)) << i;
    EXPECT_EQ(sampled[3 * i + 2].token, 1);
  }
}

TEST_P(Sample, ChoosesTheFirstIdPastTheRandomNumber) {
  const std::vector<float> logits = logits_of({0.25, 0.25, 0.25, 0.25});
  for (std::int32_t position = 0; position < 50; ++position) {
    const float u = uniform_random(99, position);
    const Sampled sampled = one({.logits = logits, .seed = 99, .position = position});
    EXPECT_EQ(sampled.token, static_cast<std::int64_t>(u * 4.0F)) << u;
  }
}

TEST_P(Sample, DrawsFollowTheDistribution) {
  expect_chi_square_fits({.logits = logits_of({0.05, 0.2, 0.3, 0.01, 0.44}), .seed = 1}, {0.05, 0.2, 0.3, 0.01, 0.44});
  // Temperature 2 takes the square root of each probability.
  const double total = 0.1 + 0.2 + 0.3 + 0.8;
  expect_chi_square_fits({.logits = logits_of({0.01, 0.04, 0.09, 0.64}), .temperature = 2.0F, .seed = 2},
                         {0.1 / total, 0.2 / total, 0.3 / total, 0.8 / total});
  expect_chi_square_fits({.logits = logits_of({0.1, 0.5, 0.25, 0.15}), .top_k = 3, .seed = 3},
                         {0, 0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9});
  expect_chi_square_fits({.logits = logits_of({0.1, 0.5, 0.25, 0.15}), .top_p = 0.7F, .seed = 4},
                         {0, 2.0 / 3, 1.0 / 3, 0});
  expect_chi_square_fits({.logits = std::vector<float>(64, 0.5F), .seed = 5}, std::vector<double>(64, 1.0 / 64));
}

TEST_P(Sample, SeedAndPositionAloneDecide) {
  RandomFill random(1);
  const std::vector<float> logits = random_logits(random, 1000, 1.0F);
  std::set<std::int64_t> by_seed;
  std::set<std::int64_t> by_position;
  for (std::int32_t i = 0; i < 20; ++i) {
    by_seed.insert(one({.logits = logits, .seed = i}).token);
    by_seed.insert(one({.logits = logits, .seed = std::int64_t{i} << 40}).token);
    by_position.insert(one({.logits = logits, .position = i}).token);
    EXPECT_EQ(one({.logits = logits, .seed = 5, .position = i}).token,
              one({.logits = logits, .seed = 5, .position = i}).token);
  }
  EXPECT_GT(by_seed.size(), 30U);
  EXPECT_GT(by_position.size(), 15U);
}

// Rows that use every step, at these vocabularies.
std::vector<SamplingRow> mixed_rows(std::int64_t vocab, std::uint64_t seed) {
  RandomFill random(seed);
  std::vector<SamplingRow> rows;
  for (int i = 0; i < 24; ++i) {
    SamplingRow row{.logits = random_logits(random, vocab, i % 2 == 0 ? 3.0F : 12.0F),
                    .greedy = i % 5 == 4,
                    .temperature = std::array{1.0F, 0.3F, 1.7F}[static_cast<std::size_t>(i % 3)],
                    .seed = random.integer(0, std::int64_t{1} << 62),
                    .position = static_cast<std::int32_t>(random.integer(0, 100000))};
    if (i % 4 == 1) row.top_k = static_cast<std::int32_t>(random.integer(1, vocab + 2));
    if (i % 6 == 2 || i % 7 == 0) row.top_p = random.uniform(0.05F, 0.99F);
    if (i % 6 == 3 || i % 11 == 0) row.typical_p = random.uniform(0.05F, 0.99F);
    if (i % 8 == 5) row.min_p = random.uniform(0.01F, 0.5F);
    if (i % 3 == 1) {
      row.repetition_penalty = random.uniform(0.8F, 1.5F);
      row.frequency_penalty = random.uniform(-1.0F, 1.0F);
      row.presence_penalty = random.uniform(-1.0F, 1.0F);
      for (std::int64_t id = 0; id < vocab; ++id) {
        const auto count = static_cast<std::int32_t>(std::max<std::int64_t>(0, random.integer(-4, 4)));
        row.counts.push_back(count + (random.integer(0, 4) == 0 ? kSeenInPrompt : 0));
      }
    }
    if (i % 4 == 2) {
      row.allowed.clear();
      for (std::int64_t id = random.integer(0, std::min<std::int64_t>(vocab, 3)); id < vocab;
           id += random.integer(1, 4)) {
        row.allowed.push_back(id);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST_P(SampleSweep, MatchesReferenceOnMixedBatches) {
  for (const std::int64_t vocab : {1, 2, 3, 16, 17, 31, 32, 33, 65, 257, 5003}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const std::vector<SamplingRow> rows = mixed_rows(vocab, seed * 100 + static_cast<std::uint64_t>(vocab));
      const std::vector<Sampled> got = sample_rows(ctx(), rows);
      const std::vector<Sampled> want = sample_rows(reference_ctx(), rows, 0);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::string where = fmt::format("vocab {}, seed {}, row {}", vocab, seed, i);
        EXPECT_EQ(got[i].token, want[i].token) << where;
        EXPECT_NEAR(got[i].logprob, want[i].logprob, tolerance(OpFamily::kLogprob)) << where;
        EXPECT_LT(got[i].token, vocab) << where;
      }
    }
  }
}

// What was dropped is -inf, all else the logit after penalties; token and logprob are those without it.
TEST_P(SampleSweep, LeavesWhatTheChoiceWasMadeAmong) {
  for (const std::int64_t vocab : {1, 3, 33, 257, 5003}) {
    const std::vector<SamplingRow> rows = mixed_rows(vocab, 17);
    const std::vector<Sampled> plain = sample_rows(ctx(), rows);
    const std::vector<Sampled> got = sample_rows(ctx(), rows, 3, Kept::kLeave);
    const std::vector<Sampled> want = sample_rows(reference_ctx(), rows, 3, Kept::kLeave);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(got[i].token, plain[i].token);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got[i].logprob), std::bit_cast<std::uint32_t>(plain[i].logprob));
      if (got[i].token < 0) continue;
      const auto token = static_cast<std::size_t>(got[i].token);
      EXPECT_GT(got[i].kept[token], -kInfinity);
      // The logprobs that follow from it add up to one.
      double sum = 0.0;
      for (std::size_t id = 0; id < got[i].kept.size(); ++id) {
        const double temperature = rows[i].greedy ? 1.0 : double{rows[i].temperature};
        const double above = (double{got[i].kept[id]} - double{got[i].kept[token]}) / temperature;
        sum += std::exp(double{got[i].logprob} + above);
        EXPECT_EQ(got[i].kept[id], want[i].kept[id]) << fmt::format("vocab {}, row {}, id {}", vocab, i, id);
      }
      EXPECT_NEAR(sum, 1.0, 1e-4) << fmt::format("vocab {}, row {}", vocab, i);
    }
  }
}

TEST_P(Sample, RowAloneEqualsRowInBatch) {
  for (const std::int64_t vocab : {33, 5003}) {
    const std::vector<SamplingRow> rows = mixed_rows(vocab, 9);
    const std::vector<Sampled> batch = sample_rows(ctx(), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Sampled alone = one(rows[i]);
      EXPECT_EQ(alone.token, batch[i].token) << i;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(alone.logprob), std::bit_cast<std::uint32_t>(batch[i].logprob)) << i;
    }
  }
}

TEST_P(SampleSweep, MatchesReferenceOnALargeVocabulary) {
  RandomFill random(4);
  SamplingRow row{.logits = random_logits(random, 256000, 8.0F), .temperature = 0.8F, .top_k = 500, .top_p = 0.9F};
  const std::vector<SamplingRow> rows{row, {.logits = row.logits, .top_p = 0.95F}, {.logits = row.logits, .seed = 7}};
  const std::vector<Sampled> got = sample_rows(ctx(), rows);
  const std::vector<Sampled> want = sample_rows(reference_ctx(), rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token) << i;
    EXPECT_NEAR(got[i].logprob, want[i].logprob, tolerance(OpFamily::kLogprob)) << i;
  }
}

TEST_P(Sample, AcceptsNoRows) { EXPECT_TRUE(sample_rows(ctx(), {}).empty()); }

}  // namespace
}  // namespace shoal
