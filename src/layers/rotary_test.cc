#include "layers/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "layers/attention.h"

namespace shoal {
namespace {

RotaryOptions plain_options() { return {.rotary_dim = 8, .theta = 10000.0, .max_positions = 64}; }

TEST(Rotary, PlainFrequenciesFallByPowersOfTheta) {
  const std::vector<float> frequencies = rotary_frequencies(plain_options(), 64);
  ASSERT_EQ(frequencies.size(), 4U);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.1F);
  EXPECT_FLOAT_EQ(frequencies[3], 0.001F);
}

TEST(Rotary, LinearScalingDividesEveryFrequency) {
  RotaryOptions options = plain_options();
  options.scaling = RopeScaling::kLinear;
  options.factor = 4.0;
  EXPECT_FLOAT_EQ(rotary_frequencies(options, 64)[1], 0.025F);
}

TEST(Rotary, DynamicScalingBeginsPastTheConfiguredLength) {
  RotaryOptions options = plain_options();
  options.scaling = RopeScaling::kDynamic;
  options.factor = 2.0;
  EXPECT_EQ(rotary_frequencies(options, 64), rotary_frequencies(plain_options(), 64));
  const double theta = 10000.0 * std::pow(2.0 * 128 / 64 - 1, 8.0 / 6.0);
  EXPECT_FLOAT_EQ(rotary_frequencies(options, 128)[1], static_cast<float>(std::pow(theta, -0.25)));
}

TEST(Rotary, Llama3KeepsShortWavesAndDividesLongOnes) {
  RotaryOptions options = plain_options();
  options.scaling = RopeScaling::kLlama3;
  options.factor = 8.0;
  options.original_max_positions = 32;
  const std::vector<float> frequencies = rotary_frequencies(options, 64);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);           // wavelength 6.3, below 32 / 4
  EXPECT_FLOAT_EQ(frequencies[3], 0.001F / 8.0F);  // wavelength 6283, above 32
}

TEST(Rotary, YarnStretchesTheAttentionTemperature) {
  RotaryOptions options = plain_options();
  EXPECT_EQ(rotary_attention_factor(options), 1.0);
  options.scaling = RopeScaling::kYarn;
  options.factor = 4.0;
  options.original_max_positions = 16;
  EXPECT_NEAR(rotary_attention_factor(options), 0.1 * std::log(4.0) + 1.0, 1e-12);
  options.attention_factor = 1.25;
  EXPECT_EQ(rotary_attention_factor(options), 1.25);
}

TEST(Alibi, SlopesFollowTheGlobalHeadCount) {
  const std::vector<float> eight = alibi_slopes(8);
  EXPECT_FLOAT_EQ(eight[0], 0.5F);
  EXPECT_FLOAT_EQ(eight[7], 1.0F / 256.0F);
  // Twelve heads: the eight slopes of the power of two below, then every other one of sixteen.
  const std::vector<float> twelve = alibi_slopes(12);
  ASSERT_EQ(twelve.size(), 12U);
  EXPECT_EQ(twelve[0], eight[0]);
  EXPECT_FLOAT_EQ(twelve[8], static_cast<float>(std::pow(2.0, -0.5)));
  EXPECT_FLOAT_EQ(twelve[9], static_cast<float>(std::pow(2.0, -1.5)));
}

}  // namespace
}  // namespace shoal
