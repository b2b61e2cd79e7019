#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/op_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr std::array kFloatDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::array kGroups{1, 3, 4, 8, 12, 16, 29, 48, 71};
constexpr std::array kWindows{0, 1, 7, 16, 17};

struct Sequence {
  std::int32_t cached;
  std::int32_t query;
};

// Lengths in the four forms that the op wants; host memory serves as device memory.
class Lengths {
 public:
  explicit Lengths(const std::vector<Sequence>& sequences) {
    for (const Sequence& sequence : sequences) {
      query_.push_back(sequence.query);
      cached_.push_back(sequence.cached);
      cu_query_.push_back(cu_query_.back() + sequence.query);
      cu_cached_.push_back(cu_cached_.back() + sequence.cached);
      if (sequence.query == 1 && num_decode_ + 1 == std::ssize(query_)) ++num_decode_;
    }
  }

  SequenceLengths view() {
    return {.query = tensor(query_),
            .cached = tensor(cached_),
            .cu_query = tensor(cu_query_),
            .cu_cached = tensor(cu_cached_),
            .host_query = query_,
            .host_cached = cached_,
            .host_cu_query = cu_query_,
            .host_cu_cached = cu_cached_,
            .num_decode = num_decode_};
  }

 private:
  static Tensor tensor(std::vector<std::int32_t>& values) {
    return {values.data(), DType::kInt32, {std::ssize(values)}};
  }

  std::vector<std::int32_t> query_;
  std::vector<std::int32_t> cached_;
  std::vector<std::int32_t> cu_query_{0};
  std::vector<std::int32_t> cu_cached_{0};
  std::int64_t num_decode_ = 0;
};

struct Shape {
  std::int64_t kv_heads = 1;
  std::int64_t group = 1;
  std::int64_t head_dim = 64;
  std::int64_t window = 0;
  bool alibi = false;
  DType cache_dtype = DType::kFloat32;

  std::string describe() const {
    return fmt::format("{} kv heads, group {}, head_dim {}, window {}, alibi {}, {} cache", kv_heads, group, head_dim,
                       window, alibi, dtype_name(cache_dtype));
  }
};

// A batch over shuffled cache blocks. Every slot that no query may read holds NaN, every table entry before the
// windows a block that does not exist.
struct Batch {
  Batch(const Shape& of_shape, std::vector<Sequence> of_sequences, std::uint64_t seed)
      : shape(of_shape), sequences(std::move(of_sequences)) {
    RandomFill random(seed);
    std::int64_t num_tokens = 0;
    for (const Sequence& s : sequences) {
      num_tokens += s.query;
      max_blocks = std::max(max_blocks, (s.cached + s.query + kBlockSize - 1) / kBlockSize);
    }
    const std::int64_t num_blocks = max_blocks * std::ssize(sequences) + 1;
    key_cache = HostTensor(shape.cache_dtype, {num_blocks, kBlockSize, shape.kv_heads, shape.head_dim});
    value_cache = HostTensor(shape.cache_dtype, {num_blocks, kBlockSize, shape.kv_heads, shape.head_dim});
    query = random.tensor(DType::kFloat32, {num_tokens, shape.kv_heads * shape.group, shape.head_dim}, Padding::kRows);
    slopes = HostTensor(DType::kFloat32, {shape.kv_heads * shape.group});
    random.fill(slopes, 0.01F, 0.5F);
    fill_tables(random, num_blocks);
  }

  void fill_tables(RandomFill& random, std::int64_t num_blocks) {
    std::vector<std::int32_t> free_blocks(static_cast<std::size_t>(num_blocks));
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    for (std::size_t i = free_blocks.size() - 1; i > 0; --i) {
      std::swap(free_blocks[i],
                free_blocks[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) + 1))]);
    }
    tables = HostTensor(DType::kInt32, {std::ssize(sequences), max_blocks});
    for (std::int64_t s = 0; s < std::ssize(sequences); ++s) {
      const Sequence& sequence = sequences[static_cast<std::size_t>(s)];
      const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, sequence.cached - shape.window + 1) : 0;
      std::int32_t* table = tables.view().row<std::int32_t>(s);
      std::fill_n(table, max_blocks, std::numeric_limits<std::int32_t>::min());
      for (std::int64_t position = first; position < sequence.cached + sequence.query; ++position) {
        std::int32_t& block = table[position / kBlockSize];
        if (block < 0) {
          block = free_blocks.back();
          free_blocks.pop_back();
        }
        const std::int64_t width = shape.kv_heads * shape.head_dim;
        for (std::int64_t i = 0; i < width; ++i) {
          key_cache.set(block, position % kBlockSize * width + i, random.uniform(-1.0F, 1.0F));
          value_cache.set(block, position % kBlockSize * width + i, random.uniform(-1.0F, 1.0F));
        }
      }
    }
  }

  // Tokens [begin, begin + sum of the lengths) as these sequences, which use block table rows from `table_row` on.
  HostTensor attend(Context& ctx, const std::vector<Sequence>& part, std::int64_t begin, std::int64_t table_row) const {
    Lengths lengths(part);
    const SequenceLengths seqlen = lengths.view();
    const std::int64_t num_tokens = seqlen.host_cu_query.back();
    HostTensor out(DType::kFloat32, {num_tokens, shape.kv_heads * shape.group, shape.head_dim}, Padding::kRows);
    ops::attention(ctx,
                   {.query = query.view().rows(begin, num_tokens),
                    .key_cache = key_cache,
                    .value_cache = value_cache,
                    .block_tables = tables.view().rows(table_row, std::ssize(part)),
                    .seqlen = seqlen,
                    .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                    .sliding_window = shape.window,
                    .alibi_slopes = shape.alibi ? slopes.view() : Tensor()},
                   out);
    return out;
  }
  HostTensor attend(Context& ctx) const { return attend(ctx, sequences, 0, 0); }

  Shape shape;
  std::vector<Sequence> sequences;
  std::int64_t max_blocks = 1;
  HostTensor query;        // [tokens, heads, head_dim]
  HostTensor key_cache;    // [blocks, 16, kv_heads, head_dim]
  HostTensor value_cache;  // like key_cache
  HostTensor tables;       // i32 [sequences, max_blocks]
  HostTensor slopes;       // [heads]
};

// Decode rows at and beside block borders, then chunks that start, cross and end there.
std::vector<Sequence> mixed_sequences() {
  return {{0, 1}, {15, 1}, {16, 1}, {40, 1}, {0, 5}, {0, 16}, {33, 18}, {5, 2}, {31, 1}, {15, 2}};
}

class AttentionOp : public BackendTest {
 protected:
  void compare_with_reference(const Batch& batch) {
    const HostTensor got = batch.attend(ctx());
    const HostTensor want = batch.attend(reference_ctx());
    expect_close(got, want, tolerance(OpFamily::kAttention, batch.shape.cache_dtype), 1.0, batch.shape.describe());
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionOp, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class AttentionOpSweep : public AttentionOp {};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionOpSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

// One sequence of three keys with head_dim 1: scores are what the test sets, so the result is a closed form.
struct ThreeKeys {
  HostTensor key_cache = HostTensor(DType::kFloat32, {2, kBlockSize, 1, 1});
  HostTensor value_cache = HostTensor(DType::kFloat32, {2, kBlockSize, 1, 1});
  HostTensor table = HostTensor(DType::kInt32, {1, 1});
  HostTensor query = values_f32({1, 1, 1}, {2});
  Lengths lengths{{{2, 1}}};

  ThreeKeys() {
    table.view().data<std::int32_t>()[0] = 1;
    for (std::int64_t i = 0; i < 3; ++i) {
      key_cache.set(1, i, static_cast<float>(i) * 0.5F);
      value_cache.set(1, i, std::array{1.0F, 10.0F, 100.0F}[static_cast<std::size_t>(i)]);
    }
  }

  float attend(Context& ctx, std::int64_t window, const Tensor& slopes) {
    HostTensor out(DType::kFloat32, {1, 1, 1});
    const SequenceLengths seqlen = lengths.view();
    ops::attention(ctx,
                   {.query = query,
                    .key_cache = key_cache,
                    .value_cache = value_cache,
                    .block_tables = table,
                    .seqlen = seqlen,
                    .scale = 0.5F,
                    .sliding_window = window,
                    .alibi_slopes = slopes},
                   out);
    return out.at(0, 0);
  }
};

TEST_P(AttentionOp, WeighsThreeKeysAsWrittenOnPaper) {
  ThreeKeys keys;
  const double bound = tolerance(OpFamily::kAttention) * 100;  // values up to 100
  const double e0 = 1.0;
  const double e1 = std::exp(0.5);  // 2 * 0.5 * scale
  const double e2 = std::exp(1.0);
  EXPECT_NEAR(keys.attend(ctx(), 0, Tensor()), (e0 + 10 * e1 + 100 * e2) / (e0 + e1 + e2), bound);
  EXPECT_NEAR(keys.attend(ctx(), 2, Tensor()), (10 * e1 + 100 * e2) / (e1 + e2), bound);
  EXPECT_NEAR(keys.attend(ctx(), 1, Tensor()), 100.0, bound);
}

TEST_P(AttentionOp, AddsAlibiInsideTheScaling) {
  ThreeKeys keys;
  const double bound = tolerance(OpFamily::kAttention) * 100;  // values up to 100
  const HostTensor slopes = values_f32({1}, {3});
  const double e0 = 1.0;
  const double e1 = std::exp((1.0 + 3.0) * 0.5);
  const double e2 = std::exp((2.0 + 6.0) * 0.5);
  EXPECT_NEAR(keys.attend(ctx(), 0, slopes), (e0 + 10 * e1 + 100 * e2) / (e0 + e1 + e2), bound);
}

TEST_P(AttentionOpSweep, MatchesReferenceOnEveryGroupAndWindow) {
  std::size_t index = 0;
  for (const std::int64_t group : kGroups) {
    for (const std::int64_t window : kWindows) {
      const Shape shape{.group = group,
                        .head_dim = 64,
                        .window = window,
                        .alibi = index % 2 == 1,
                        .cache_dtype = kFloatDTypes[index % kFloatDTypes.size()]};
      compare_with_reference(Batch(shape, mixed_sequences(), index));
      ++index;
    }
  }
}

TEST_P(AttentionOpSweep, MatchesReferenceOnEveryHeadDimAndCacheKind) {
  std::size_t index = 0;
  for (const std::int64_t head_dim : {1, 8, 20, 32, 64, 80, 96, 128, 256}) {
    for (const DType dtype : kFloatDTypes) {
      const Shape shape{.kv_heads = 3,
                        .group = 2,
                        .head_dim = head_dim,
                        .window = kWindows[index % kWindows.size()],
                        .alibi = index % 3 == 1,
                        .cache_dtype = dtype};
      compare_with_reference(Batch(shape, mixed_sequences(), index));
      ++index;
    }
  }
}

TEST_P(AttentionOpSweep, MatchesReferenceOnLongContexts) {
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t window : {0, 100}) {
      const Shape shape{.kv_heads = 2, .group = 4, .head_dim = 32, .window = window, .cache_dtype = dtype};
      compare_with_reference(Batch(shape, {{1500, 1}, {0, 1}, {700, 33}}, 1));
    }
  }
}

TEST_P(AttentionOpSweep, MatchesReferenceOnLargeScores) {
  Batch batch({.group = 4}, mixed_sequences(), 2);
  for (std::int64_t t = 0; t < batch.query.view().dim(0); ++t) {
    for (std::int64_t i = 0; i < batch.query.view().row_elements(); ++i) {
      batch.query.set(t, i, batch.query.at(t, i) * 200.0F);  // scores of several hundred
    }
  }
  const HostTensor got = batch.attend(ctx());
  // A score of 300 carries 2^-24 of itself into the exponent.
  expect_close(got, batch.attend(reference_ctx()), 3e-4, 1.0, "large scores");
}

TEST_P(AttentionOp, SequenceAndTokenAloneEqualTheBatch) {
  std::size_t index = 0;
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t window : kWindows) {
      const Shape shape{.kv_heads = 2,
                        .group = kGroups[index % kGroups.size()],
                        .head_dim = index % 2 == 0 ? 80 : 17,
                        .window = window,
                        .alibi = index % 2 == 0,
                        .cache_dtype = dtype};
      const Batch batch(shape, mixed_sequences(), index++);
      const HostTensor all = batch.attend(ctx());
      std::int64_t begin = 0;
      for (std::int64_t s = 0; s < std::ssize(batch.sequences); ++s) {
        const Sequence sequence = batch.sequences[static_cast<std::size_t>(s)];
        expect_same_bits(all, begin, batch.attend(ctx(), {sequence}, begin, s),
                         fmt::format("sequence {}, {}", s, shape.describe()));
        for (std::int32_t i = 0; i < sequence.query; ++i) {
          expect_same_bits(all, begin + i, batch.attend(ctx(), {{sequence.cached + i, 1}}, begin + i, s),
                           fmt::format("token {} of sequence {}, {}", i, s, shape.describe()));
        }
        begin += sequence.query;
      }
    }
  }
}

TEST_P(AttentionOp, ChunksEqualOnePrefill) {
  for (const std::int64_t group : {1, 5, 71}) {
    const Batch batch({.group = group, .head_dim = 32, .cache_dtype = DType::kBFloat16}, {{0, 70}}, 3);
    const HostTensor whole = batch.attend(ctx());
    for (const std::int32_t chunk : {3, 16, 33}) {
      for (std::int32_t begin = 0; begin < 70; begin += chunk) {
        const std::int32_t count = std::min(chunk, 70 - begin);
        expect_same_bits(whole, begin, batch.attend(ctx(), {{begin, count}}, begin, 0),
                         fmt::format("chunk of {} at {}, group {}", count, begin, group));
      }
    }
  }
}

TEST_P(AttentionOpSweep, DoesNotDependOnThreads) {
  const Batch batch({.kv_heads = 2, .group = 12, .head_dim = 64}, mixed_sequences(), 4);
  TestBackend single(GetParam(), 1);
  expect_same_bits(batch.attend(ctx()), 0, batch.attend(single.ctx()), "one thread and three");
}

TEST_P(AttentionOp, KeepsNanInItsSequence) {
  Batch batch({.kv_heads = 2, .group = 3, .head_dim = 32}, mixed_sequences(), 5);
  const HostTensor clean = batch.attend(ctx());
  batch.query.set(2, 7, std::nanf(""));  // head 0 of the third decode row
  const HostTensor out = batch.attend(ctx());
  for (std::int64_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(out.at(2, i))) << i;
  for (std::int64_t t = 0; t < out.view().dim(0); ++t) {
    for (std::int64_t i = t == 2 ? 32 : 0; i < out.view().row_elements(); ++i) {
      ASSERT_EQ(out.at(t, i), clean.at(t, i)) << "token " << t;
    }
  }
}

TEST_P(AttentionOp, AcceptsEmptyBatchesAndEmptySequences) {
  const Batch none({.group = 2}, {}, 6);
  EXPECT_EQ(none.attend(ctx()).view().dim(0), 0);
  const Batch some({.group = 2}, {{4, 1}, {9, 0}, {3, 2}}, 7);
  compare_with_reference(some);
}

class WriteCache : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, WriteCache, ::testing::ValuesIn(all_isas()), isa_test_name);

TEST_P(WriteCache, RoundsIntoItsSlotsAndTouchesNoOther) {
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t head_dim : {1, 8, 17, 64}) {
      RandomFill random(static_cast<std::uint64_t>(head_dim));
      const HostTensor key = random.tensor(DType::kFloat32, {5, 3, head_dim}, Padding::kRows);
      const HostTensor value = random.tensor(DType::kFloat32, {5, 3, head_dim}, Padding::kRows);
      HostTensor want_keys = random.tensor(dtype, {4, kBlockSize, 3, head_dim});
      HostTensor want_values = random.tensor(dtype, {4, kBlockSize, 3, head_dim});
      const HostTensor keys = want_keys.clone();
      const HostTensor values = want_values.clone();
      const HostTensor slots = values_i64({63, 0, 17, 16, 40});
      ops::write_cache(ctx(), key, value, slots, keys, values);
      const std::int64_t width = 3 * head_dim;
      for (std::int64_t t = 0; t < 5; ++t) {
        const std::int64_t slot = slots.view().data<std::int64_t>()[t];
        for (std::int64_t i = 0; i < width; ++i) {
          want_keys.set(slot / kBlockSize, slot % kBlockSize * width + i, key.at(t, i));
          want_values.set(slot / kBlockSize, slot % kBlockSize * width + i, value.at(t, i));
        }
      }
      expect_close(keys, want_keys, 0.0, 1.0, fmt::format("{} keys, head_dim {}", dtype_name(dtype), head_dim));
      expect_close(values, want_values, 0.0, 1.0, fmt::format("{} values, head_dim {}", dtype_name(dtype), head_dim));
    }
  }
}

TEST_P(WriteCache, KeepsNanAndInfinity) {
  const HostTensor key = values_f32({1, 1, 4}, {std::nanf(""), INFINITY, -INFINITY, -0.0F});
  for (const DType dtype : kFloatDTypes) {
    const HostTensor keys(dtype, {1, kBlockSize, 1, 4});
    const HostTensor values(dtype, {1, kBlockSize, 1, 4});
    ops::write_cache(ctx(), key, key, values_i64({3}), keys, values);
    EXPECT_TRUE(std::isnan(keys.at(0, 12)));
    EXPECT_EQ(keys.at(0, 13), INFINITY);
    EXPECT_EQ(values.at(0, 14), -INFINITY);
    EXPECT_TRUE(std::signbit(values.at(0, 15)) && values.at(0, 15) == 0.0F);
  }
}

}  // namespace
}  // namespace shoal
