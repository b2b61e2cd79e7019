#include "ops/norm.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "ops/op_test_util.h"
#include "ops/rotary.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr std::array kWidths{1, 3, 16, 17, 64, 65, 192, 257, 4544};
constexpr std::array kTokens{0, 1, 2, 5, 16, 33};

class Norm : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, Norm, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class NormSweep : public Norm {};

INSTANTIATE_TEST_SUITE_P(Backends, NormSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST_P(Norm, RmsNormOfSmallNumbers) {
  const HostTensor x = values_f32({2, 2}, {3, 4, 0, 0});
  const HostTensor weight = values_f32({2}, {1, 2});
  HostTensor out(DType::kFloat32, {2, 2});
  ops::rms_norm(ctx(), x, weight, 0.0F + 1e-12F, out);
  const float root = std::sqrt(12.5F);
  expect_close(out, values_f32({2, 2}, {3 / root, 8 / root, 0, 0}), tolerance(OpFamily::kNorm), 1.0, "rms");
}

TEST_P(Norm, LayerNormOfSmallNumbers) {
  const HostTensor x = values_f32({1, 4}, {1, 2, 3, 6});  // mean 3, variance 3.5
  const HostTensor weight = values_f32({4}, {1, 1, 2, 2});
  const HostTensor bias = values_f32({4}, {0, 1, 0, 1});
  HostTensor out(DType::kFloat32, {1, 4});
  const float root = std::sqrt(3.5F + 0.5F);
  ops::layer_norm(ctx(), x, weight, bias, 0.5F, out);
  expect_close(out, values_f32({1, 4}, {-2 / root, 1 - 1 / root, 0, 1 + 6 / root}), tolerance(OpFamily::kNorm), 1.0,
               "with bias");
  ops::layer_norm(ctx(), x, weight, Tensor(), 0.5F, out);
  expect_close(out, values_f32({1, 4}, {-2 / root, -1 / root, 0, 6 / root}), tolerance(OpFamily::kNorm), 1.0,
               "without bias");
}

TEST_P(NormSweep, MatchesReferenceOnOddWidths) {
  for (const std::int64_t hidden : kWidths) {
    for (const std::int64_t tokens : kTokens) {
      RandomFill random(static_cast<std::uint64_t>(hidden * 100 + tokens));
      HostTensor x(DType::kFloat32, {tokens, hidden}, Padding::kRows);
      random.fill(x, -1.0F, 3.0F);  // a mean away from zero
      const HostTensor weight = random.tensor(DType::kFloat32, {hidden});
      const HostTensor bias = random.tensor(DType::kFloat32, {hidden});
      HostTensor got(DType::kFloat32, {tokens, hidden}, Padding::kRows);
      HostTensor want(DType::kFloat32, {tokens, hidden});
      const std::string where = fmt::format("[{}, {}]", tokens, hidden);
      ops::rms_norm(ctx(), x, weight, 1e-6F, got);
      ops::rms_norm(reference_ctx(), x, weight, 1e-6F, want);
      expect_close(got, want, tolerance(OpFamily::kNorm), 2.0, "rms " + where);
      for (const Tensor& bias_or_none : {bias.view(), Tensor()}) {
        ops::layer_norm(ctx(), x, weight, bias_or_none, 1e-5F, got);
        ops::layer_norm(reference_ctx(), x, weight, bias_or_none, 1e-5F, want);
        expect_close(got, want, tolerance(OpFamily::kNorm), 4.0, "layer " + where);
      }
    }
  }
}

TEST_P(NormSweep, LayerNormKeepsItsDigitsFarFromZero) {
  RandomFill random(1);
  HostTensor x(DType::kFloat32, {3, 513});
  random.fill(x, 1000.0F, 1001.0F);
  HostTensor weight(DType::kFloat32, {513});
  random.fill(weight, 1.0F, 1.0F);
  HostTensor got(DType::kFloat32, {3, 513});
  HostTensor want(DType::kFloat32, {3, 513});
  ops::layer_norm(ctx(), x, weight, Tensor(), 1e-5F, got);
  ops::layer_norm(reference_ctx(), x, weight, Tensor(), 1e-5F, want);
  // The mean itself carries 2^-24 of 1000, against a spread of 0.29.
  expect_close(got, want, 1e-3, 1.0, "offset 1000");
}

TEST_P(Norm, WorksInPlace) {
  RandomFill random(2);
  const HostTensor x = random.tensor(DType::kFloat32, {5, 65}, Padding::kRows);
  const HostTensor weight = random.tensor(DType::kFloat32, {65});
  HostTensor apart(DType::kFloat32, {5, 65});
  HostTensor in_place = x.clone();
  ops::rms_norm(ctx(), x, weight, 1e-6F, apart);
  ops::rms_norm(ctx(), in_place, weight, 1e-6F, in_place);
  expect_same_bits(apart, 0, in_place, "rms");
  in_place = x.clone();
  ops::layer_norm(ctx(), x, weight, weight, 1e-6F, apart);
  ops::layer_norm(ctx(), in_place, weight, weight, 1e-6F, in_place);
  expect_same_bits(apart, 0, in_place, "layer");
}

TEST_P(Norm, RowAloneEqualsRowInBatch) {
  RandomFill random(3);
  for (const std::int64_t hidden : kWidths) {
    const HostTensor x = random.tensor(DType::kFloat32, {9, hidden});
    const HostTensor weight = random.tensor(DType::kFloat32, {hidden});
    HostTensor rms(DType::kFloat32, {9, hidden});
    HostTensor layer(DType::kFloat32, {9, hidden});
    ops::rms_norm(ctx(), x, weight, 1e-6F, rms);
    ops::layer_norm(ctx(), x, weight, weight, 1e-6F, layer);
    for (std::int64_t t = 0; t < 9; ++t) {
      HostTensor alone(DType::kFloat32, {1, hidden});
      ops::rms_norm(ctx(), x.view().rows(t, 1), weight, 1e-6F, alone);
      expect_same_bits(rms, t, alone, fmt::format("rms {}", hidden));
      ops::layer_norm(ctx(), x.view().rows(t, 1), weight, weight, 1e-6F, alone);
      expect_same_bits(layer, t, alone, fmt::format("layer {}", hidden));
    }
  }
}

TEST_P(NormSweep, NormsEachHeadByItsOwnWeight) {
  for (const std::int64_t heads : {1, 3, 8}) {
    for (const std::int64_t head_dim : {1, 8, 32, 64, 80, 96, 128, 256}) {
      for (const std::int64_t tokens : kTokens) {
        RandomFill random(static_cast<std::uint64_t>(heads * head_dim));
        HostTensor got = random.tensor(DType::kFloat32, {tokens, heads, head_dim}, Padding::kRows);
        HostTensor want = got.clone();
        const HostTensor before = got.clone();
        const HostTensor weight = random.tensor(DType::kFloat32, {heads, head_dim});
        ops::head_layer_norm(ctx(), weight, 1e-5F, got);
        ops::head_layer_norm(reference_ctx(), weight, 1e-5F, want);
        const std::string where = fmt::format("[{}, {}, {}]", tokens, heads, head_dim);
        expect_close(got, want, tolerance(OpFamily::kNorm), 4.0, where);
        for (std::int64_t t = 0; t < tokens; ++t) {
          const HostTensor alone = before.clone();
          ops::head_layer_norm(ctx(), weight, 1e-5F, alone.view().rows(t, 1));
          for (std::int64_t i = 0; i < heads * head_dim; ++i) ASSERT_EQ(alone.at(t, i), got.at(t, i)) << where;
        }
      }
    }
  }
}

TEST_P(Norm, HeadNormIsTheLayerNormOfThatHead) {
  RandomFill random(8);
  const HostTensor x = random.tensor(DType::kFloat32, {2, 2, 17});
  const HostTensor weight = random.tensor(DType::kFloat32, {2, 17});
  HostTensor heads = x.clone();
  ops::head_layer_norm(ctx(), weight, 1e-5F, heads);
  for (std::int64_t head = 0; head < 2; ++head) {
    HostTensor want(DType::kFloat32, {2, 17});
    const Tensor columns = x.view().with_row_shape({34}).columns(head * 17, 17);
    ops::layer_norm(reference_ctx(), columns, weight.view().rows(head, 1).reshape({17}), Tensor(), 1e-5F, want);
    for (std::int64_t t = 0; t < 2; ++t) {
      for (std::int64_t i = 0; i < 17; ++i) EXPECT_NEAR(heads.at(t, head * 17 + i), want.at(t, i), 1e-5F);
    }
  }
}

class Rotary : public BackendTest {
 protected:
  // [positions, rotary_dim] for base 10000.
  static HostTensor table(std::int64_t num_positions, std::int64_t rotary_dim) {
    HostTensor cos_sin(DType::kFloat32, {num_positions, rotary_dim});
    const std::int64_t half = rotary_dim / 2;
    for (std::int64_t p = 0; p < num_positions; ++p) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim);
        const double angle = static_cast<double>(p) * std::pow(10000.0, exponent);
        cos_sin.set(p, i, static_cast<float>(std::cos(angle)));
        cos_sin.set(p, half + i, static_cast<float>(std::sin(angle)));
      }
    }
    return cos_sin;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Rotary, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class RotarySweep : public Rotary {};

INSTANTIATE_TEST_SUITE_P(Backends, RotarySweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST_P(Rotary, PairsAsTheStyleSays) {
  // Position 1 turns the first pair by 90 degrees and leaves the second; the fifth value is past rotary_dim.
  const HostTensor cos_sin = values_f32({2, 4}, {1, 1, 0, 0, 0, 1, 1, 0});
  const HostTensor positions = values_i32({1, 0});
  HostTensor x = values_f32({2, 1, 5}, {1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
  ops::rotary(ctx(), positions, cos_sin, RotaryStyle::kHalfSplit, x);
  expect_close(x, values_f32({2, 1, 5}, {-3, 2, 1, 4, 5, 1, 2, 3, 4, 5}), 0.0, 1.0, "half split");
  x = values_f32({2, 1, 5}, {1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
  ops::rotary(ctx(), positions, cos_sin, RotaryStyle::kNeighbours, x);
  expect_close(x, values_f32({2, 1, 5}, {-2, 1, 3, 4, 5, 1, 2, 3, 4, 5}), 0.0, 1.0, "neighbours");
}

TEST_P(RotarySweep, MatchesReferenceOnOddShapes) {
  for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kNeighbours}) {
    for (const std::int64_t head_dim : {2, 6, 8, 32, 64, 80, 96, 128, 256}) {
      for (const std::int64_t heads : {1, 3, 8}) {
        for (const std::int64_t rotary_dim : {std::int64_t{2}, head_dim / 4 * 2, head_dim}) {
          for (const std::int64_t tokens : kTokens) {
            RandomFill random(static_cast<std::uint64_t>(head_dim * heads + rotary_dim));
            const HostTensor cos_sin = table(50, rotary_dim);
            HostTensor positions(DType::kInt32, {tokens});
            for (std::int32_t& p : positions.view().span<std::int32_t>()) {
              p = static_cast<std::int32_t>(random.integer(0, 50));
            }
            HostTensor got = random.tensor(DType::kFloat32, {tokens, heads, head_dim}, Padding::kRows);
            HostTensor want = got.clone();
            const HostTensor before = got.clone();
            ops::rotary(ctx(), positions, cos_sin, style, got);
            ops::rotary(reference_ctx(), positions, cos_sin, style, want);
            const std::string where = fmt::format("[{}, {}, {}], rotary_dim {}, style {}", tokens, heads, head_dim,
                                                  rotary_dim, static_cast<int>(style));
            expect_close(got, want, tolerance(OpFamily::kRotary), 1.0, where);
            if (tokens == 0) continue;
            ops::rotary(ctx(), positions.view().rows(tokens - 1, 1), cos_sin, style, before.view().rows(tokens - 1, 1));
            for (std::int64_t i = 0; i < heads * head_dim; ++i) {
              ASSERT_EQ(before.at(tokens - 1, i), got.at(tokens - 1, i)) << where;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal
