#include "ops/watermark.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "ops/op_test_util.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Watermark : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(All, Watermark, ::testing::ValuesIn(all_isas()), isa_test_name);

// As the Python of docs/watermark.md has them.
TEST(GreenTokens, AreThoseOfTheDocumentedRule) {
  std::vector<std::int64_t> green;
  for (std::int64_t id = 0; id < 16; ++id) {
    if (is_green(42, id, 0.5F)) green.push_back(id);
  }
  EXPECT_EQ(green, (std::vector<std::int64_t>{0, 3, 7, 8, 9, 10, 14}));
}

TEST(GreenTokens, AreTheShareThatWasAskedForAndDifferAfterEachToken) {
  constexpr std::int64_t kVocab = 40'000;
  for (const float gamma : {0.1F, 0.5F, 0.9F}) {
    std::int64_t after_7 = 0;
    std::int64_t after_both = 0;
    for (std::int64_t id = 0; id < kVocab; ++id) {
      after_7 += is_green(7, id, gamma) ? 1 : 0;
      after_both += is_green(7, id, gamma) && is_green(8, id, gamma) ? 1 : 0;
    }
    const double share = double{gamma};
    EXPECT_NEAR(static_cast<double>(after_7) / kVocab, share, 0.01);
    EXPECT_NEAR(static_cast<double>(after_both) / kVocab, share * share, 0.01);
  }
}

TEST_P(Watermark, AddsToGreenTokensOfItsRowsAlone) {
  constexpr std::int64_t kVocab = 9001;  // neither whole blocks nor whole spans
  const std::vector<std::int64_t> before = {49'151, -1, 5, 0};
  const std::vector<float> gamma = {0.25F, 0.0F, 0.5F, 0.9F};
  const std::vector<float> delta = {2.0F, 0.0F, -1.5F, 0.5F};
  HostTensor logits(DType::kFloat32, {4, kVocab});
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t id = 0; id < kVocab; ++id) logits.set(row, id, static_cast<float>(id % 7));
    logits.set(row, 11, -kInfinity);
  }
  ops::add_watermark(ctx(),
                     {.ids = values_i64({5, 0, 49'151}),
                      .after = values_i64({2, -1, 0, 1}),
                      .gamma = values_f32({4}, {0.25F, 0.0F, 0.5F, 0.9F}),
                      .delta = values_f32({4}, {2.0F, 0.0F, -1.5F, 0.5F})},
                     logits);
  for (std::int64_t row = 0; row < 4; ++row) {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t id = 0; id < kVocab; ++id) {
      float want = id == 11 ? -kInfinity : static_cast<float>(id % 7);
      if (before[r] >= 0 && is_green(before[r], id, gamma[r])) want += delta[r];
      ASSERT_EQ(logits.at(row, id), want) << row << ' ' << id;
    }
  }
}

TEST_P(Watermark, ARowWithoutOneStaysAsItIs) {
  HostTensor logits = values_f32({1, 3}, {1, 2, 3});
  ops::add_watermark(ctx(),
                     {.ids = values_i64({1}),
                      .after = values_i64({-1}),
                      .gamma = values_f32({1}, {0.0F}),
                      .delta = values_f32({1}, {0.0F})},
                     logits);
  for (std::int64_t id = 0; id < 3; ++id) EXPECT_EQ(logits.at(0, id), static_cast<float>(id + 1));
}

}  // namespace
}  // namespace shoal
