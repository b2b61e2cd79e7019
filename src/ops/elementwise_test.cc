#include "ops/elementwise.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "ops/op_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr std::array kWidths{1, 3, 16, 17, 64, 65, 192, 257};
constexpr std::array kTokens{0, 1, 2, 5, 16, 33};
constexpr std::array kKinds{Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kRelu};

class Elementwise : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, Elementwise, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class ElementwiseSweep : public Elementwise {};

INSTANTIATE_TEST_SUITE_P(Backends, ElementwiseSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST_P(Elementwise, ActivationsTakeTheirPublishedValues) {
  const HostTensor x = values_f32({1, 4}, {-1, 0, 1, 2});
  // From scipy: silu, gelu(approximate none), gelu(approximate tanh), relu.
  const std::array<HostTensor, 4> want{values_f32({1, 4}, {-0.26894142F, 0, 0.73105858F, 1.76159416F}),
                                       values_f32({1, 4}, {-0.15865525F, 0, 0.84134475F, 1.95449974F}),
                                       values_f32({1, 4}, {-0.15880801F, 0, 0.84119199F, 1.95459769F}),
                                       values_f32({1, 4}, {0, 0, 1, 2})};
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    HostTensor out(DType::kFloat32, {1, 4});
    ops::activation(ctx(), kKinds[kind], x, out);
    expect_close(out, want[kind], tolerance(OpFamily::kActivation), 1.0, fmt::format("activation {}", kind));
  }
}

TEST_P(ElementwiseSweep, ActivationsMatchReferenceOverTheirWholeRange) {
  HostTensor x(DType::kFloat32, {1, 4001});
  for (std::int64_t i = 0; i < 4001; ++i) x.set(0, i, static_cast<float>(i - 2000) * 0.01F);
  for (const Activation kind : kKinds) {
    HostTensor got(DType::kFloat32, {1, 4001});
    HostTensor want(DType::kFloat32, {1, 4001});
    ops::activation(ctx(), kind, x, got);
    ops::activation(reference_ctx(), kind, x, want);
    for (std::int64_t i = 0; i < 4001; ++i) {
      const double magnitude = std::abs(double{x.at(0, i)}) + 0.01;
      ASSERT_NEAR(got.at(0, i), want.at(0, i), tolerance(OpFamily::kActivation) * magnitude)
          << "x = " << x.at(0, i) << ", activation " << static_cast<int>(kind);
    }
  }
}

TEST_P(Elementwise, ActivationsSurviveExtremes) {
  const HostTensor x = values_f32({1, 6}, {-3e38F, -200.0F, 3e38F, 200.0F, std::nanf(""), -0.0F});
  for (const Activation kind : kKinds) {
    HostTensor out(DType::kFloat32, {1, 6});
    ops::activation(ctx(), kind, x, out);
    const std::string where = fmt::format("activation {}", static_cast<int>(kind));
    EXPECT_NEAR(out.at(0, 0), 0.0F, 1e-5F) << where;
    EXPECT_NEAR(out.at(0, 1), 0.0F, 1e-5F) << where;
    EXPECT_FLOAT_EQ(out.at(0, 2), 3e38F) << where;
    EXPECT_FLOAT_EQ(out.at(0, 3), 200.0F) << where;
    EXPECT_TRUE(std::isnan(out.at(0, 4))) << where;
    EXPECT_EQ(out.at(0, 5), 0.0F) << where;
  }
}

TEST_P(ElementwiseSweep, MatchesReferenceOnOddShapes) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t tokens : kTokens) {
      RandomFill random(static_cast<std::uint64_t>(width * 100 + tokens));
      const HostTensor a = random.tensor(DType::kFloat32, {tokens, width}, Padding::kRows);
      const HostTensor b = random.tensor(DType::kFloat32, {tokens, width});
      HostTensor gate_up = random.tensor(DType::kFloat32, {tokens, 2 * width}, Padding::kRows);
      HostTensor got(DType::kFloat32, {tokens, width}, Padding::kRows);
      HostTensor want(DType::kFloat32, {tokens, width});
      const std::string where = fmt::format("[{}, {}]", tokens, width);
      for (const Activation kind : kKinds) {
        ops::activation(ctx(), kind, a, got);
        ops::activation(reference_ctx(), kind, a, want);
        expect_close(got, want, tolerance(OpFamily::kActivation), 1.0, "activation " + where);
        ops::gated_activation(ctx(), kind, gate_up, got);
        ops::gated_activation(reference_ctx(), kind, gate_up, want);
        expect_close(got, want, tolerance(OpFamily::kActivation), 1.0, "gated " + where);
      }
      ops::add(ctx(), a, b, got);
      ops::add(reference_ctx(), a, b, want);
      expect_close(got, want, 0.0, 1.0, "add " + where);
      ops::mix(ctx(), a, b, 0.3F, got);
      ops::mix(reference_ctx(), a, b, 0.3F, want);
      expect_close(got, want, 2e-7, 1.0, "mix " + where);
      ops::scale(ctx(), a, 0.0625F, got);
      ops::scale(reference_ctx(), a, 0.0625F, want);
      expect_close(got, want, 0.0, 1.0, "scale " + where);
    }
  }
}

TEST_P(Elementwise, ComputesSmallNumbersExactly) {
  const HostTensor a = values_f32({1, 3}, {1, 2, -3});
  const HostTensor b = values_f32({1, 3}, {5, 0, 1});
  HostTensor out(DType::kFloat32, {1, 3});
  ops::add(ctx(), a, b, out);
  expect_close(out, values_f32({1, 3}, {6, 2, -2}), 0.0, 1.0, "add");
  ops::mix(ctx(), a, b, 0.25F, out);
  expect_close(out, values_f32({1, 3}, {4, 0.5F, 0}), 0.0, 1.0, "mix");
  ops::scale(ctx(), a, -2.0F, out);
  expect_close(out, values_f32({1, 3}, {-2, -4, 6}), 0.0, 1.0, "scale");
  HostTensor gated(DType::kFloat32, {1, 2});
  ops::gated_activation(ctx(), Activation::kRelu, values_f32({1, 4}, {2, -1, 3, 7}), gated);
  expect_close(gated, values_f32({1, 2}, {6, 0}), 0.0, 1.0, "gated");
}

TEST_P(Elementwise, WorksInPlace) {
  RandomFill random(1);
  const HostTensor a = random.tensor(DType::kFloat32, {3, 65}, Padding::kRows);
  const HostTensor b = random.tensor(DType::kFloat32, {3, 65}, Padding::kRows);
  HostTensor want(DType::kFloat32, {3, 65});
  ops::add(ctx(), a, b, want);
  HostTensor left = a.clone();
  ops::add(ctx(), left, b, left);
  expect_same_bits(want, 0, left, "add into a");
  HostTensor right = b.clone();
  ops::add(ctx(), a, right, right);
  expect_same_bits(want, 0, right, "add into b");
  ops::mix(ctx(), a, b, 0.7F, want);
  right = b.clone();
  ops::mix(ctx(), a, right, 0.7F, right);
  expect_same_bits(want, 0, right, "mix into b");
  ops::activation(ctx(), Activation::kGeluErf, a, want);
  left = a.clone();
  ops::activation(ctx(), Activation::kGeluErf, left, left);
  expect_same_bits(want, 0, left, "activation");
  ops::scale(ctx(), a, 3.0F, want);
  left = a.clone();
  ops::scale(ctx(), left, 3.0F, left);
  expect_same_bits(want, 0, left, "scale");
}

TEST_P(Elementwise, RowAloneEqualsRowInBatch) {
  RandomFill random(2);
  for (const std::int64_t width : kWidths) {
    const HostTensor x = random.tensor(DType::kFloat32, {33, 2 * width});
    const Tensor a = x.view().columns(0, width);
    for (const Activation kind : kKinds) {
      HostTensor activated(DType::kFloat32, {33, width});
      HostTensor gated(DType::kFloat32, {33, width});
      ops::activation(ctx(), kind, a, activated);
      ops::gated_activation(ctx(), kind, x, gated);
      for (std::int64_t t = 0; t < 33; ++t) {
        HostTensor alone(DType::kFloat32, {1, width});
        ops::activation(ctx(), kind, a.rows(t, 1), alone);
        expect_same_bits(activated, t, alone, fmt::format("activation {}", width));
        ops::gated_activation(ctx(), kind, x.view().rows(t, 1), alone);
        expect_same_bits(gated, t, alone, fmt::format("gated {}", width));
      }
    }
    HostTensor mixed(DType::kFloat32, {33, width});
    ops::mix(ctx(), a, x.view().columns(width, width), 0.4F, mixed);
    for (std::int64_t t = 0; t < 33; ++t) {
      HostTensor alone(DType::kFloat32, {1, width});
      ops::mix(ctx(), a.rows(t, 1), x.view().columns(width, width).rows(t, 1), 0.4F, alone);
      expect_same_bits(mixed, t, alone, fmt::format("mix {}", width));
    }
  }
}

TEST_P(Elementwise, GathersRows) {
  RandomFill random(3);
  for (const std::int64_t hidden : kWidths) {
    const HostTensor x = random.tensor(DType::kFloat32, {9, hidden}, Padding::kRows);
    const HostTensor indices = values_i64({8, 0, 0, 3});
    HostTensor out(DType::kFloat32, {4, hidden}, Padding::kRows);
    ops::gather_rows(ctx(), x, indices, out);
    EXPECT_TRUE(out.guards_intact());
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t k = 0; k < hidden; ++k) {
        ASSERT_EQ(out.at(i, k), x.at(indices.view().data<std::int64_t>()[i], k));
      }
    }
  }
  const HostTensor nothing(DType::kFloat32, {0, 4});
  ops::gather_rows(ctx(), random.tensor(DType::kFloat32, {2, 4}), HostTensor(DType::kInt64, {0}), nothing);
}

}  // namespace
}  // namespace shoal
