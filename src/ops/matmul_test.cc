#include "ops/matmul.h"

#include <fmt/format.h>

#include <array>

#include "ops/elementwise.h"
#include "ops/op_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr std::array kWidths{1, 3, 16, 17, 64, 65, 192, 257};
constexpr std::array kTokens{0, 1, 2, 5, 16, 33};
constexpr std::array kFloatDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class Matmul : public BackendTest {
 protected:
  struct Case {
    DType dtype;
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t tokens;
    bool with_bias = true;
    MatmulOutput mode = MatmulOutput::kOverwrite;
    Padding padding = Padding::kNone;

    std::string describe() const {
      return fmt::format("{} weight [{}, {}], {} tokens, bias {}, accumulate {}, padded {}", dtype_name(dtype), rows,
                         cols, tokens, with_bias, mode == MatmulOutput::kAccumulate, padding == Padding::kRows);
    }
  };

  // This kernel set multiplies bfloat16 pairs, so it sees x as the sum of two of them.
  static OpFamily matmul_family(DType weight_dtype) {
    const bool splits = GetParam() == CpuIsa::kAvx512Bf16 && weight_dtype == DType::kBFloat16;
    return splits ? OpFamily::kMatmulOfSplitActivations : OpFamily::kMatmul;
  }

  void compare_with_reference(const Case& c) {
    RandomFill random(static_cast<std::uint64_t>(c.rows * 1000 + c.cols * 10 + c.tokens));
    const HostTensor weight = random.tensor(c.dtype, {c.rows, c.cols});
    const HostTensor x = random.tensor(DType::kFloat32, {c.tokens, c.cols}, c.padding);
    const HostTensor bias = random.tensor(DType::kFloat32, {c.rows});
    const Tensor bias_or_none = c.with_bias ? bias.view() : Tensor();
    HostTensor got = random.tensor(DType::kFloat32, {c.tokens, c.rows}, c.padding);
    HostTensor want = got.clone();
    ops::matmul(ctx(), x, tested().matrix(c.dtype, weight), bias_or_none, c.mode, got);
    ops::matmul(reference_ctx(), x, reference().matrix(c.dtype, weight), bias_or_none, c.mode, want);
    // Uniform operands in [-1, 1): the terms of a sum add up to about cols / 4.
    expect_close(got, want, tolerance(matmul_family(c.dtype), c.dtype), 1.0 + static_cast<double>(c.cols) / 4,
                 c.describe());
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Matmul, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class MatmulSweep : public Matmul {};

INSTANTIATE_TEST_SUITE_P(Backends, MatmulSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST_P(Matmul, MultipliesSmallNumbersExactly) {
  const HostTensor x = values_f32({2, 3}, {1, 2, 3, -1, 0, 4});
  const HostTensor weight = values_f32({2, 3}, {1, 0, -1, 2, 0.5F, 1});
  const HostTensor bias = values_f32({2}, {10, 20});
  for (const DType dtype : kFloatDTypes) {
    const Matrix matrix = tested().matrix(dtype, weight);
    HostTensor out(DType::kFloat32, {2, 2});
    ops::matmul(ctx(), x, matrix, bias, MatmulOutput::kOverwrite, out);
    expect_close(out, values_f32({2, 2}, {8, 26, 5, 22}), 0.0, 1.0, "overwrite");
    ops::matmul(ctx(), x, matrix, Tensor(), MatmulOutput::kAccumulate, out);
    expect_close(out, values_f32({2, 2}, {6, 32, 0, 24}), 0.0, 1.0, "accumulate");
  }
}

TEST_P(MatmulSweep, MatchesReferenceOnOddWidthsAndTokens) {
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t rows : kWidths) {
      for (const std::int64_t cols : kWidths) {
        for (const std::int64_t tokens : kTokens) {
          const bool odd = (rows + cols + tokens) % 2 == 1;
          compare_with_reference({.dtype = dtype,
                                  .rows = rows,
                                  .cols = cols,
                                  .tokens = tokens,
                                  .with_bias = odd,
                                  .padding = odd ? Padding::kNone : Padding::kRows});
        }
      }
    }
  }
}

TEST_P(MatmulSweep, AccumulatesWithAndWithoutBias) {
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t tokens : kTokens) {
      for (const bool with_bias : {false, true}) {
        compare_with_reference({.dtype = dtype,
                                .rows = 65,
                                .cols = 193,
                                .tokens = tokens,
                                .with_bias = with_bias,
                                .mode = MatmulOutput::kAccumulate,
                                .padding = Padding::kRows});
      }
    }
  }
}

TEST_P(MatmulSweep, MatchesReferenceOnEveryTokenCountThroughSeveralTiles) {
  for (const DType dtype : kFloatDTypes) {
    for (std::int64_t tokens = 1; tokens <= 40; ++tokens) {
      compare_with_reference({.dtype = dtype, .rows = 49, .cols = 67, .tokens = tokens});
    }
  }
}

TEST_P(MatmulSweep, MatchesReferenceOnLongSums) {
  for (const DType dtype : kFloatDTypes) {
    compare_with_reference({.dtype = dtype, .rows = 37, .cols = 9001, .tokens = 1});
    compare_with_reference({.dtype = dtype, .rows = 150, .cols = 4099, .tokens = 13});
    compare_with_reference({.dtype = dtype, .rows = 97, .cols = 1031, .tokens = 131, .padding = Padding::kRows});
  }
}

TEST_P(MatmulSweep, MatchesReferenceOnManyRows) {
  compare_with_reference({.dtype = DType::kBFloat16, .rows = 5003, .cols = 33, .tokens = 3});
  compare_with_reference({.dtype = DType::kFloat32, .rows = 5003, .cols = 33, .tokens = 17});
}

TEST_P(Matmul, RowAloneEqualsRowInBatch) {
  RandomFill random(3);
  for (const DType dtype : kFloatDTypes) {
    for (const auto& [rows, cols] : {std::pair{65, 257}, std::pair{17, 3}, std::pair{33, 4099}}) {
      const Matrix weight = tested().matrix(dtype, random.tensor(DType::kFloat32, {rows, cols}));
      const HostTensor bias = random.tensor(DType::kFloat32, {rows});
      const HostTensor x = random.tensor(DType::kFloat32, {33, cols});
      for (const MatmulOutput mode : {MatmulOutput::kOverwrite, MatmulOutput::kAccumulate}) {
        HostTensor batch(DType::kFloat32, {33, rows});
        random.fill(batch);
        const HostTensor before = batch.clone();
        ops::matmul(ctx(), x, weight, bias, mode, batch);
        for (const std::int64_t count : {1, 4, 7}) {
          for (std::int64_t begin = 0; begin + count <= 33; begin += count) {
            HostTensor alone(DType::kFloat32, {count, rows});
            for (std::int64_t t = 0; t < count; ++t) {
              for (std::int64_t n = 0; n < rows; ++n) alone.set(t, n, before.at(begin + t, n));
            }
            ops::matmul(ctx(), x.view().rows(begin, count), weight, bias, mode, alone);
            expect_same_bits(batch, begin, alone, fmt::format("{} [{}, {}]", dtype_name(dtype), rows, cols));
          }
        }
      }
    }
  }
}

// Odd widths that leave no padding between the parts that threads share, often enough to meet in time.
TEST_P(MatmulSweep, DoesNotDependOnThreads) {
  RandomFill random(4);
  TestBackend single(GetParam(), 1);
  for (const DType dtype : kFloatDTypes) {
    const HostTensor weight = random.tensor(dtype, {17, 4099});
    const HostTensor x = random.tensor(DType::kFloat32, {61, 4099});
    HostTensor one(DType::kFloat32, {61, 17});
    ops::matmul(single.ctx(), x, single.matrix(dtype, weight), Tensor(), MatmulOutput::kOverwrite, one);
    const Matrix matrix = tested().matrix(dtype, weight);
    for (int round = 0; round < 100 && !HasFailure(); ++round) {
      HostTensor many(DType::kFloat32, {61, 17});
      ops::matmul(ctx(), x, matrix, Tensor(), MatmulOutput::kOverwrite, many);
      expect_same_bits(one, 0, many, fmt::format("round {}, {}", round, dtype_name(dtype)));
    }
  }
}

TEST_P(Matmul, KeepsNanAndInfinityInTheirRow) {
  RandomFill random(5);
  for (const DType dtype : kFloatDTypes) {
    const Matrix weight = tested().matrix(dtype, random.tensor(DType::kFloat32, {40, 64}));
    HostTensor x = random.tensor(DType::kFloat32, {14, 64});
    HostTensor clean(DType::kFloat32, {14, 40});
    ops::matmul(ctx(), x, weight, Tensor(), MatmulOutput::kOverwrite, clean);
    x.set(5, 63, std::nanf(""));
    HostTensor out(DType::kFloat32, {14, 40});
    ops::matmul(ctx(), x, weight, Tensor(), MatmulOutput::kOverwrite, out);
    for (std::int64_t n = 0; n < 40; ++n) EXPECT_TRUE(std::isnan(out.at(5, n))) << n;
    for (std::int64_t t = 0; t < 14; ++t) {
      if (t == 5) continue;
      EXPECT_EQ(out.at(t, 39), clean.at(t, 39)) << t;
    }
  }
}

TEST_P(Matmul, ActivatedIsTheActivationOfTheProduct) {
  RandomFill random(6);
  for (const DType dtype : kFloatDTypes) {
    const Matrix weight = tested().matrix(dtype, random.tensor(DType::kFloat32, {40, 65}));
    const HostTensor x = random.tensor(DType::kFloat32, {5, 65});
    const HostTensor bias = random.tensor(DType::kFloat32, {40});
    for (const Activation kind : {Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kRelu}) {
      HostTensor want(DType::kFloat32, {5, 40});
      ops::matmul(ctx(), x, weight, bias, MatmulOutput::kOverwrite, want);
      ops::activation(ctx(), kind, want, want);
      HostTensor got(DType::kFloat32, {5, 40});
      ops::matmul_activated(ctx(), x, weight, bias, kind, got);
      expect_same_bits(got, 0, want, fmt::format("{}, activation {}", dtype_name(dtype), static_cast<int>(kind)));
    }
  }
}

TEST_P(Matmul, FillsRowRangesFromEveryFloatKind) {
  RandomFill random(6);
  const HostTensor whole = random.tensor(DType::kBFloat16, {70, 45});
  for (const DType dtype : kFloatDTypes) {
    for (const DType source : kFloatDTypes) {
      Matrix pieces = tested().backend().allocate_matrix(dtype, 70, 45);
      for (const auto& [begin, count] : {std::pair{48, 22}, std::pair{0, 16}, std::pair{16, 32}}) {
        HostTensor rows(source, {count, 45}, Padding::kRows);
        for (std::int64_t n = 0; n < count; ++n) {
          for (std::int64_t k = 0; k < 45; ++k) rows.set(n, k, whole.at(begin + n, k));
        }
        tested().backend().fill_rows(pieces, begin, rows);
      }
      const HostTensor x = random.tensor(DType::kFloat32, {3, 45});
      HostTensor want(DType::kFloat32, {3, 70});
      HostTensor got(DType::kFloat32, {3, 70});
      // float16 holds these bfloat16 values only within its own rounding, so each kind of source is compared alone.
      HostTensor as_source(source, {70, 45});
      for (std::int64_t n = 0; n < 70; ++n) {
        for (std::int64_t k = 0; k < 45; ++k) as_source.set(n, k, whole.at(n, k));
      }
      ops::matmul(ctx(), x, pieces, Tensor(), MatmulOutput::kOverwrite, got);
      ops::matmul(ctx(), x, tested().matrix(dtype, as_source), Tensor(), MatmulOutput::kOverwrite, want);
      expect_same_bits(want, 0, got, fmt::format("{} from {}", dtype_name(dtype), dtype_name(source)));
    }
  }
}

class Embedding : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, Embedding, ::testing::ValuesIn(all_isas()), isa_test_name);

TEST_P(Embedding, CopiesAndAddsTableRowsExactly) {
  RandomFill random(7);
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t cols : kWidths) {
      const HostTensor table = random.tensor(dtype, {37, cols});
      const Matrix matrix = tested().matrix(dtype, table);
      const HostTensor ids = values_i64({36, 0, 17, 17, 5});
      const HostTensor positions = values_i32({1, 2, 3, 36, 0});
      HostTensor out(DType::kFloat32, {5, cols}, Padding::kRows);
      ops::embedding(ctx(), ids, matrix, EmbeddingOutput::kOverwrite, out);
      HostTensor want(DType::kFloat32, {5, cols});
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t i = 0; i < cols; ++i) want.set(t, i, table.at(ids.view().data<std::int64_t>()[t], i));
      }
      expect_close(out, want, 0.0, 1.0, fmt::format("{} columns", cols));
      ops::embedding(ctx(), positions, matrix, EmbeddingOutput::kAccumulate, out);
      for (std::int64_t t = 0; t < 5; ++t) {
        const std::int64_t position = positions.view().data<std::int32_t>()[t];
        for (std::int64_t i = 0; i < cols; ++i) want.set(t, i, want.at(t, i) + table.at(position, i));
      }
      expect_close(out, want, 0.0, 1.0, fmt::format("{} columns, added", cols));
    }
  }
}

TEST_P(Embedding, AcceptsNoTokens) {
  const Matrix table = tested().matrix(DType::kFloat32, values_f32({1, 2}, {1, 2}));
  const HostTensor ids(DType::kInt64, {0});
  const HostTensor out(DType::kFloat32, {0, 2});
  ops::embedding(ctx(), ids, table, EmbeddingOutput::kOverwrite, out);
}

}  // namespace
}  // namespace shoal
