// Products with a weight, from one row (own kernel) to many (cuBLASLt).
#include "ops/matmul.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "ops/cuda/cuda_test_util.h"
#include "ops/elementwise.h"

namespace shoal {
namespace {

constexpr std::array<std::int64_t, 9> kRows{1, 2, 3, 4, 5, 8, 17, 64, 130};

struct Size {
  std::int64_t columns;
  std::int64_t inner;
};
// Odd; multiples of 16; wide one way, the other and (few rows alone, for the reference's sake) both.
constexpr std::array kSizes{Size{7, 5},     Size{33, 17},   Size{129, 96},   Size{256, 128}, Size{4544, 96},
                            Size{65, 4544}, Size{19, 9000}, Size{5000, 520}, Size{9, 22720}};
constexpr Size kWide{4672, 4544};

struct Variant {
  bool has_bias = false;
  MatmulOutput mode = MatmulOutput::kOverwrite;
  bool float32_out = false;
  Guards x_guards = kContiguous;
  Guards out_guards = kContiguous;
};
constexpr std::array kVariants{
    Variant{},
    Variant{.has_bias = true, .x_guards = kOddGuards, .out_guards = kAlignedGuards},
    Variant{.mode = MatmulOutput::kAccumulate, .x_guards = kAlignedGuards, .out_guards = kOddGuards},
    Variant{.has_bias = true, .mode = MatmulOutput::kAccumulate},
    Variant{.float32_out = true, .x_guards = kAlignedGuards, .out_guards = kAlignedGuards},
    Variant{.has_bias = true, .mode = MatmulOutput::kAccumulate, .float32_out = true, .out_guards = kOddGuards}};

using CudaWeights = CudaTest;

TEST_F(CudaWeights, RefuseWhatTheirDtypeCannotHold) {
  Matrix matrix = backend().allocate_matrix(DType::kFloat16, 2, 8);
  std::vector<float> values(16, 65504.0F);
  const Tensor rows(values.data(), DType::kFloat32, {2, 8});
  backend().fill_rows(matrix, 0, rows);
  values[9] = 1e5F;
  EXPECT_THROW(backend().fill_rows(matrix, 0, rows), std::range_error);
  values[9] = 1.0F;
  backend().fill_rows(matrix, 0, rows);  // the fault is not remembered
}

class CudaMatmul : public CudaTest {
 protected:
  struct Weight {
    Matrix device;
    Matrix reference;
  };

  Weight weight(RandomFill& random, DType dtype, const Size& extents) {
    const HostTensor values = random.tensor(dtype, {extents.columns, extents.inner});
    Weight result;
    result.device = backend().allocate_matrix(dtype, extents.columns, extents.inner);
    backend().fill_rows(result.device, 0, values);
    const Backend& reference = reference_ctx().backend;
    result.reference = reference.allocate_matrix(dtype, extents.columns, extents.inner);
    reference.fill_rows(result.reference, 0, values);
    return result;
  }

  // Twice on the GPU, which gives the same bits, and once on the reference.
  void compare(RandomFill& random, const Weight& weight, std::int64_t num_rows, const Variant& variant) {
    const DType dtype = weight.device.dtype;
    const std::int64_t columns = weight.device.rows;
    const std::int64_t inner = weight.device.cols;
    const Twin x = random_twin(random, dtype, {num_rows, inner}, variant.x_guards);
    const Twin bias = random_twin(random, DType::kFloat32, {columns});
    const HostTensor before = random.tensor(variant.float32_out ? DType::kFloat32 : dtype, {num_rows, columns});
    const Twin out = twin(before, variant.out_guards);
    const DeviceTensor again(backend(), before, variant.out_guards);
    const auto bias_on = [&](Side side) { return variant.has_bias ? bias.on(side) : Tensor(); };
    ops::matmul(ctx(), x.device, weight.device, bias_on(Side::kDevice), variant.mode, out.device);
    ops::matmul(ctx(), x.device, weight.device, bias_on(Side::kDevice), variant.mode, again);
    ops::matmul(reference_ctx(), x.reference, weight.reference, bias_on(Side::kReference), variant.mode, out.reference);
    const bool accumulates = variant.mode == MatmulOutput::kAccumulate;
    const std::string where =
        fmt::format("{}, {} rows, weight {} x {}{}{}{}, guards {} and {}", dtype_name(dtype), num_rows, columns, inner,
                    variant.has_bias ? ", bias" : "", accumulates ? ", accumulated" : "",
                    variant.float32_out ? ", float32 out" : "", variant.x_guards.before, variant.out_guards.before);
    const HostTensor got = out.device.download();
    // A product of two uniform values is 1/4 in the mean; bias and the value before are at most 1. With cuBLASLt the
    // bias, or its sum with the value before, stands in `out` first, in out's dtype.
    expect_within(got, out.reference,
                  {.family = OpFamily::kMatmul,
                   .magnitude = static_cast<double>(inner) / 4.0 + 2.0,
                   .rounded = variant.has_bias ? (accumulates ? 2.0 : 1.0) : 0.0},
                  where);
    expect_equal_bits(again.download(), got, "again, " + where);
  }
};

TEST_F(CudaMatmul, MatchesReferenceAndRepeats) {
  for (const DType dtype : kFloatDTypes) {
    for (const Size& extents : kSizes) {
      RandomFill random(static_cast<std::uint64_t>(extents.inner));
      const Weight of_size = weight(random, dtype, extents);
      for (const std::int64_t num_rows : kRows) {
        for (const Variant& variant : kVariants) compare(random, of_size, num_rows, variant);
      }
    }
  }
}

TEST_F(CudaMatmul, MatchesReferenceOnAModelsSize) {
  for (const DType dtype : kFloatDTypes) {
    RandomFill random(1);
    const Weight wide = weight(random, dtype, kWide);
    for (const std::int64_t num_rows : {1, 4, 7}) {
      compare(random, wide, num_rows, {});
      compare(random, wide, num_rows, {.float32_out = true, .x_guards = kAlignedGuards});
    }
  }
}

TEST_F(CudaMatmul, RowsOfFewDoNotDependOnTheirNumber) {
  for (const DType dtype : kFloatDTypes) {
    RandomFill random(2);
    const Weight of_size = weight(random, dtype, {.columns = 65, .inner = 4544});
    const DeviceTensor x(backend(), random.tensor(dtype, {2, 4544}));
    const DeviceTensor together(backend(), dtype, {2, 65});
    ops::matmul(ctx(), x, of_size.device, Tensor(), MatmulOutput::kOverwrite, together);
    for (std::int64_t row = 0; row < 2; ++row) {
      const DeviceTensor alone(backend(), dtype, {1, 65});
      ops::matmul(ctx(), x.view().rows(row, 1), of_size.device, Tensor(), MatmulOutput::kOverwrite, alone);
      expect_equal_bits(as_float32(alone.download()), rows_of(as_float32(together.download()), row, 1),
                        fmt::format("{}, row {}", dtype_name(dtype), row));
    }
  }
}

TEST_F(CudaMatmul, ActivatedIsTheActivationOfTheFloat32Product) {
  for (const DType dtype : kFloatDTypes) {
    RandomFill random(4);
    const Weight of_size = weight(random, dtype, {.columns = 200, .inner = 2056});
    for (const std::int64_t num_rows : {1, 2, 3, 17}) {
      const DeviceTensor x(backend(), random.tensor(dtype, {num_rows, 2056}));
      const DeviceTensor bias(backend(), random.tensor(DType::kFloat32, {200}));
      const DeviceTensor product(backend(), DType::kFloat32, {num_rows, 200});
      ops::matmul(ctx(), x, of_size.device, bias, MatmulOutput::kOverwrite, product);
      const DType out_dtype = dtype == DType::kFloat16 && num_rows % 2 == 0 ? DType::kBFloat16 : dtype;
      for (const Activation kind :
           {Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kRelu}) {
        const DeviceTensor want(backend(), out_dtype, {num_rows, 200});
        ops::activation(ctx(), kind, product, want);
        const DeviceTensor got(backend(), out_dtype, {num_rows, 200});
        ops::matmul_activated(ctx(), x, of_size.device, bias, kind, got);
        expect_equal_bits(as_float32(got.download()), as_float32(want.download()),
                          fmt::format("{} to {}, {} rows, activation {}", dtype_name(dtype), dtype_name(out_dtype),
                                      num_rows, static_cast<int>(kind)));
      }
    }
  }
}

// Row distances that promise an alignment which the first row does not have.
TEST_F(CudaMatmul, TakesAlignedStridesFromAnyStart) {
  constexpr Guards kShifted{.before = 3, .after = 5};
  for (const DType dtype : kFloatDTypes) {
    RandomFill random(3);
    const Weight of_size = weight(random, dtype, {.columns = 256, .inner = 128});
    for (const std::int64_t num_rows : {2, 17, 130}) {
      compare(random, of_size, num_rows, {.x_guards = kShifted});
      compare(random, of_size, num_rows, {.out_guards = kShifted});
    }
  }
}

}  // namespace
}  // namespace shoal
