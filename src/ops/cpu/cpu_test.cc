// What only packed, threaded kernels can get wrong; the sweeps against the reference stand in ops/*_test.cc.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/attention.h"
#include "ops/lora.h"
#include "ops/matmul.h"
#include "ops/op_test_util.h"

namespace shoal {
namespace {

constexpr std::array kFloatDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<CpuIsa> packed_isas() {
  std::vector<CpuIsa> isas = all_isas();
  std::erase(isas, CpuIsa::kReference);
  return isas;
}

class CpuKernels : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, CpuKernels, ::testing::ValuesIn(packed_isas()), isa_test_name);

struct Product {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
};

std::string describe(const Product& product) {
  return fmt::format("{} weight [{}, {}]", dtype_name(product.dtype), product.rows, product.cols);
}

// Each row of 300 alone, on one thread.
HostTensor rows_alone(CpuIsa isa, const HostTensor& x, const HostTensor& weight, DType dtype, const HostTensor& bias,
                      MatmulOutput mode, const HostTensor& start) {
  TestBackend single(isa, 1);
  const Matrix matrix = single.matrix(dtype, weight);
  HostTensor out = start.clone();
  for (std::int64_t row = 0; row < x.view().dim(0); ++row) {
    ops::matmul(single.ctx(), x.view().rows(row, 1), matrix, bias, mode, out.view().rows(row, 1));
  }
  return out;
}

void expect_rows_equal(const HostTensor& got, const HostTensor& alone, std::int64_t begin, const std::string& where) {
  const auto row_bytes = static_cast<std::size_t>(got.view().row_elements()) * sizeof(float);
  for (std::int64_t row = 0; row < got.view().dim(0); ++row) {
    ASSERT_EQ(std::memcmp(got.view().row<float>(row), alone.view().row<float>(begin + row), row_bytes), 0)
        << where << ", row " << begin + row;
  }
}

TEST_P(CpuKernels, MatmulRowsHaveTheSameBitsInAnyBatchAndAnyThreadCount) {
  constexpr std::int64_t kRows = 300;
  std::uint64_t seed = 1;
  for (const DType dtype : kFloatDTypes) {
    for (const auto& [rows, cols] :
         {std::pair{1, 1}, {15, 33}, {16, 17}, {17, 16}, {33, 15}, {130, 1030}, {257, 519}}) {
      const Product product{dtype, rows, cols};
      RandomFill random(seed++);
      const HostTensor x = random.tensor(DType::kFloat32, {kRows, cols}, Padding::kRows);
      const HostTensor weight = random.tensor(DType::kFloat32, {rows, cols});
      const HostTensor bias = random.tensor(DType::kFloat32, {rows});
      const HostTensor start = random.tensor(DType::kFloat32, {kRows, rows}, Padding::kRows);
      const MatmulOutput mode = seed % 2 == 0 ? MatmulOutput::kAccumulate : MatmulOutput::kOverwrite;
      const HostTensor alone = rows_alone(GetParam(), x, weight, dtype, bias, mode, start);
      for (const int num_threads : {1, 2, 3, 5}) {
        TestBackend many(GetParam(), num_threads);
        const Matrix matrix = many.matrix(dtype, weight);
        for (std::int64_t count = 2; count <= 33; ++count) {
          const std::int64_t begin = random.integer(0, kRows - count + 1);
          HostTensor out(DType::kFloat32, {count, rows}, Padding::kRows);
          for (std::int64_t row = 0; row < count; ++row) {
            std::memcpy(out.view().row<float>(row), start.view().row<float>(begin + row),
                        static_cast<std::size_t>(rows) * sizeof(float));
          }
          ops::matmul(many.ctx(), x.view().rows(begin, count), matrix, bias, mode, out);
          expect_rows_equal(out, alone, begin,
                            fmt::format("{}, {} rows, {} threads", describe(product), count, num_threads));
          EXPECT_TRUE(out.guards_intact());
        }
        HostTensor out = start.clone();
        ops::matmul(many.ctx(), x, matrix, bias, mode, out);
        expect_rows_equal(out, alone, 0, fmt::format("{}, all rows, {} threads", describe(product), num_threads));
      }
    }
  }
}

TEST_P(CpuKernels, MatmulStaysInsideItsScratch) {
  // Rows packed for an odd width once took a zero too many, into the next tile of another thread.
  RandomFill random(6);
  for (const DType dtype : kFloatDTypes) {
    const HostTensor x = random.tensor(DType::kFloat32, {131, 4099});
    const HostTensor weight = random.tensor(DType::kFloat32, {33, 4099});
    const HostTensor bias = random.tensor(DType::kFloat32, {33});
    const HostTensor start(DType::kFloat32, {131, 33});
    const HostTensor alone = rows_alone(GetParam(), x, weight, dtype, bias, MatmulOutput::kOverwrite, start);
    TestBackend many(GetParam(), 4);
    const Matrix matrix = many.matrix(dtype, weight);
    for (int repeat = 0; repeat < 20; ++repeat) {
      HostTensor out = start.clone();
      ops::matmul(many.ctx(), x, matrix, bias, MatmulOutput::kOverwrite, out);
      expect_rows_equal(out, alone, 0, std::string(dtype_name(dtype)));
    }
  }
}

float rounded_to(DType dtype, float value) {
  if (dtype == DType::kBFloat16) return to_float(to_bfloat16(value));
  if (dtype == DType::kFloat16) return to_float(to_float16(value));
  return value;
}

TEST_P(CpuKernels, PackingRoundTripsFromEveryTypeInAnyPieces) {
  RandomFill random(7);
  for (const DType source : kFloatDTypes) {
    for (const DType dtype : kFloatDTypes) {
      for (const auto& [rows, cols] : {std::pair{1, 1}, {15, 7}, {16, 16}, {17, 33}, {50, 300}, {33, 517}}) {
        const HostTensor host = random.tensor(source, {rows, cols}, Padding::kRows);
        Matrix matrix = tested().backend().allocate_matrix(dtype, rows, cols);
        // Garbage in whole panels must be gone after filling; the padding of the last panel was zeroed before.
        std::memset(matrix.storage.raw(), 0xff, static_cast<std::size_t>(matrix.rows / 16 * 16 * cols) * 2U);
        for (std::int64_t begin = 0; begin < rows;) {
          const std::int64_t count = std::min<std::int64_t>(random.integer(1, 40), rows - begin);
          tested().backend().fill_rows(matrix, begin, host.view().rows(begin, count));
          begin += count;
        }
        HostTensor ids(DType::kInt32, {rows});
        std::iota(ids.view().data<std::int32_t>(), ids.view().data<std::int32_t>() + rows, 0);
        HostTensor out(DType::kFloat32, {rows, cols}, Padding::kRows);
        ops::embedding(ctx(), ids, matrix, EmbeddingOutput::kOverwrite, out);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t col = 0; col < cols; ++col) {
            ASSERT_EQ(out.at(row, col), rounded_to(dtype, host.at(row, col)))
                << dtype_name(source) << " to " << dtype_name(dtype) << " at " << row << ", " << col;
          }
        }
      }
    }
  }
}

TEST_P(CpuKernels, FillingRowsTouchesNoOtherRow) {
  RandomFill random(8);
  for (const DType dtype : kFloatDTypes) {
    const HostTensor first = random.tensor(DType::kFloat32, {40, 21});
    const HostTensor second = random.tensor(DType::kFloat32, {9, 21});
    Matrix matrix = tested().matrix(dtype, first);
    tested().backend().fill_rows(matrix, 13, second);
    HostTensor out(DType::kFloat32, {1, 21});
    for (std::int64_t row = 0; row < 40; ++row) {
      HostTensor id = values_i64({row});
      ops::embedding(ctx(), id, matrix, EmbeddingOutput::kOverwrite, out);
      const bool replaced = row >= 13 && row < 22;
      for (std::int64_t col = 0; col < 21; ++col) {
        ASSERT_EQ(out.at(0, col), rounded_to(dtype, replaced ? second.at(row - 13, col) : first.at(row, col)))
            << "row " << row;
      }
    }
  }
}

TEST_P(CpuKernels, MatrixWithNanPaddingNowhereElseStaysFinite) {
  // The lanes past the last row and the odd half of the last pair must not reach an output.
  for (const DType dtype : kFloatDTypes) {
    RandomFill random(9);
    const HostTensor weight = random.tensor(DType::kFloat32, {19, 5});
    const HostTensor x = random.tensor(DType::kFloat32, {7, 5}, Padding::kRows);  // NaN stands between the rows
    HostTensor out(DType::kFloat32, {7, 19}, Padding::kRows);
    ops::matmul(ctx(), x, tested().matrix(dtype, weight), Tensor(), MatmulOutput::kOverwrite, out);
    for (std::int64_t row = 0; row < 7; ++row) {
      for (std::int64_t col = 0; col < 19; ++col) ASSERT_TRUE(std::isfinite(out.at(row, col)));
    }
    EXPECT_TRUE(out.guards_intact());
  }
}

// One sequence in order over blocks 0, 1, ...: what a query may not see is NaN in one run and zero in the other.
HostTensor attend_last_tokens(Context& ctx, const HostTensor& query, const HostTensor& keys, const HostTensor& values,
                              std::int32_t cached, std::int64_t window) {
  const auto count = static_cast<std::int32_t>(query.view().dim(0));
  HostTensor table(DType::kInt32, {1, keys.view().dim(0)});
  std::int32_t* blocks = table.view().data<std::int32_t>();
  std::iota(blocks, blocks + keys.view().dim(0), 0);
  for (std::int64_t block = 0; window > 0 && (block + 1) * 16 <= cached + 1 - window; ++block) {
    blocks[block] = std::numeric_limits<std::int32_t>::max();
  }
  std::array<std::int32_t, 1> query_lengths{count};
  std::array<std::int32_t, 1> cached_lengths{cached};
  std::array<std::int32_t, 2> cu_query{0, count};
  std::array<std::int32_t, 2> cu_cached{0, cached};
  const SequenceLengths seqlen{.query = Tensor(query_lengths.data(), DType::kInt32, {1}),
                               .cached = Tensor(cached_lengths.data(), DType::kInt32, {1}),
                               .cu_query = Tensor(cu_query.data(), DType::kInt32, {2}),
                               .cu_cached = Tensor(cu_cached.data(), DType::kInt32, {2}),
                               .host_query = query_lengths,
                               .host_cached = cached_lengths,
                               .host_cu_query = cu_query,
                               .host_cu_cached = cu_cached};
  HostTensor out(DType::kFloat32, {count, query.view().dim(1), query.view().dim(2)});
  ops::attention(ctx,
                 {.query = query,
                  .key_cache = keys,
                  .value_cache = values,
                  .block_tables = table,
                  .seqlen = seqlen,
                  .scale = 0.25F,
                  .sliding_window = window},
                 out);
  return out;
}

TEST_P(CpuKernels, KeysOutsideAQuerysRangeTakeNoPartEvenIfNan) {
  constexpr std::int64_t kWidth = 2 * 24;
  RandomFill random(10);
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t window : {0, 5, 20}) {
      const HostTensor query = random.tensor(DType::kFloat32, {30, 6, 24});
      HostTensor keys = random.tensor(dtype, {6, 16, 2, 24});
      HostTensor values = random.tensor(dtype, {6, 16, 2, 24});
      const HostTensor clean = attend_last_tokens(ctx(), query, keys, values, 50, window);
      // Token 12 of the chunk becomes NaN: those before it, and those whose window has passed it, keep their bits.
      for (std::int64_t i = 0; i < kWidth; ++i) {
        keys.set(62 / 16, 62 % 16 * kWidth + i, std::nanf(""));
        values.set(62 / 16, 62 % 16 * kWidth + i, std::nanf(""));
      }
      const HostTensor out = attend_last_tokens(ctx(), query, keys, values, 50, window);
      for (std::int64_t t = 0; t < 30; ++t) {
        const bool sees = t >= 12 && (window == 0 || t - 12 < window);
        const float* got = out.view().row<float>(t);
        if (sees) {
          EXPECT_TRUE(std::isnan(got[0])) << t;
        } else {
          ASSERT_EQ(std::memcmp(got, clean.view().row<float>(t), 6 * 24 * sizeof(float)), 0) << "token " << t;
        }
      }
    }
  }
}

TEST_P(CpuKernels, LoraTokensHaveTheSameBitsAloneAndTogether) {
  RandomFill random(11);
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t rank : {1, 3, 16, 37}) {
      const HostTensor x = random.tensor(DType::kFloat32, {70, 130}, Padding::kRows);
      const HostTensor a = random.tensor(dtype, {rank, 130});
      const HostTensor b = random.tensor(dtype, {rank, 97});
      const std::array pairs{LoraPair{a, b, 0.5F}};
      const std::array parts{LoraPart{.target_id = 0, .column_begin = 3, .column_count = 97}};
      const HostTensor start = random.tensor(DType::kFloat32, {70, 110}, Padding::kRows);
      const auto apply = [&](Context& where, std::vector<std::int32_t> rows) {
        HostTensor out = start.clone();
        const std::array groups{LoraGroup{pairs, 0, std::ssize(rows)}};
        const LoraBatch batch{groups, Tensor(rows.data(), DType::kInt32, {std::ssize(rows)}), rows, rank};
        ops::lora_add(where, x, batch, parts, out);
        EXPECT_TRUE(out.guards_intact());
        return out;
      };
      std::vector<std::int32_t> all(70);
      std::iota(all.rbegin(), all.rend(), 0);
      all.erase(all.begin() + 5);  // row 64 belongs to the base model
      const HostTensor together = apply(ctx(), all);
      TestBackend single(GetParam(), 1);
      for (const std::int32_t row : {0, 1, 33, 64, 69}) {
        const HostTensor alone = row == 64 ? start.clone() : apply(single.ctx(), {row});
        ASSERT_EQ(std::memcmp(together.view().row<float>(row), alone.view().row<float>(row), 110 * sizeof(float)), 0)
            << "row " << row << ", rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace shoal
