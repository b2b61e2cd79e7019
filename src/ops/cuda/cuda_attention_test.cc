// Paged attention: the decode, prefill and plain kernels against the reference, over caches in which everything that
// no query may read is NaN or points nowhere.
#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ops/cuda/cuda_test_util.h"

namespace shoal {
namespace {

constexpr std::array kHalfDTypes{DType::kBFloat16, DType::kFloat16};
constexpr std::array<std::int64_t, 3> kHeadDims{64, 128, 256};
constexpr std::array<std::int64_t, 8> kGroups{1, 4, 8, 12, 16, 29, 48, 71};
constexpr std::array<std::int64_t, 4> kWindows{0, 1, 16, 40};
constexpr float kLargestSlope = 0.5F;

struct Sequence {
  std::int32_t cached;
  std::int32_t query;
};

struct Shape {
  std::int64_t kv_heads = 1;
  std::int64_t group = 1;
  std::int64_t head_dim = 64;
  std::int64_t window = 0;
  bool alibi = false;
  DType dtype = DType::kFloat32;  // of activations
  DType cache_dtype = DType::kFloat32;
  bool peaked = false;  // scores of up to about 12: a few keys of many decide

  std::int64_t heads() const { return kv_heads * group; }
  float scale() const { return (peaked ? 9.0F : 1.0F) / std::sqrt(static_cast<float>(head_dim)); }
  // Whether the tensor-core kernels take it, which round weights to the activations' dtype before they meet the values.
  bool fast() const {
    return dtype != DType::kFloat32 && dtype == cache_dtype &&
           std::find(kHeadDims.begin(), kHeadDims.end(), head_dim) != kHeadDims.end();
  }
  std::string describe() const {
    return fmt::format("{}, {} cache, {} kv heads, group {}, head_dim {}, window {}{}{}", dtype_name(dtype),
                       dtype_name(cache_dtype), kv_heads, group, head_dim, window, alibi ? ", alibi" : "",
                       peaked ? ", peaked" : "");
  }
};

// Lengths in the forms that the op wants, for either side.
class Lengths {
 public:
  Lengths(const Backend& backend, const std::vector<Sequence>& sequences) : backend_(backend) {
    for (const Sequence& sequence : sequences) {
      query_.push_back(sequence.query);
      cached_.push_back(sequence.cached);
      cu_query_.push_back(cu_query_.back() + sequence.query);
      cu_cached_.push_back(cu_cached_.back() + sequence.cached);
      if (sequence.query == 1 && num_decode_ + 1 == std::ssize(query_)) ++num_decode_;
    }
    for (const auto* values : {&query_, &cached_, &cu_query_, &cu_cached_}) {
      twins_.emplace_back(backend_, host_values(*values, DType::kInt32));
    }
  }

  SequenceLengths on(Side side) const {
    return {.query = twins_[0].on(side),
            .cached = twins_[1].on(side),
            .cu_query = twins_[2].on(side),
            .cu_cached = twins_[3].on(side),
            .host_query = query_,
            .host_cached = cached_,
            .host_cu_query = cu_query_,
            .host_cu_cached = cu_cached_,
            .num_decode = num_decode_};
  }

 private:
  const Backend& backend_;
  std::vector<std::int32_t> query_;
  std::vector<std::int32_t> cached_;
  std::vector<std::int32_t> cu_query_{0};
  std::vector<std::int32_t> cu_cached_{0};
  std::vector<Twin> twins_;
  std::int64_t num_decode_ = 0;
};

// Keys and values of sequences in shuffled blocks. Slots that no query may read hold NaN, and so do blocks that nobody
// owns; table entries before the windows and past the last key are no blocks.
struct CacheValues {
  CacheValues(const Shape& shape, const std::vector<Sequence>& sequences, RandomFill& random) {
    std::int64_t max_blocks = 1;
    for (const Sequence& s : sequences) {
      max_blocks = std::max(max_blocks, (s.cached + s.query + kBlockSize - 1) / kBlockSize);
    }
    const std::int64_t num_blocks = max_blocks * std::ssize(sequences) + 3;
    keys = HostTensor(shape.cache_dtype, {num_blocks, kBlockSize, shape.kv_heads, shape.head_dim});
    values = HostTensor(shape.cache_dtype, {num_blocks, kBlockSize, shape.kv_heads, shape.head_dim});
    tables = HostTensor(DType::kInt32, {std::ssize(sequences), max_blocks});
    std::vector<std::int32_t> free_blocks(static_cast<std::size_t>(num_blocks));
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    for (std::int64_t i = num_blocks - 1; i > 0; --i) {
      std::swap(free_blocks[static_cast<std::size_t>(i)],
                free_blocks[static_cast<std::size_t>(random.integer(0, i + 1))]);
    }
    const std::int64_t width = shape.kv_heads * shape.head_dim;
    for (std::int64_t s = 0; s < std::ssize(sequences); ++s) {
      const Sequence& sequence = sequences[static_cast<std::size_t>(s)];
      std::int32_t* table = tables.view().row<std::int32_t>(s);
      for (std::int64_t i = 0; i < max_blocks; ++i) table[i] = i % 2 == 0 ? -7 : 1 << 30;
      const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, sequence.cached - shape.window + 1) : 0;
      for (std::int64_t position = first; position < sequence.cached + sequence.query; ++position) {
        if (position == first || position % kBlockSize == 0) {
          table[position / kBlockSize] = free_blocks.back();
          free_blocks.pop_back();
        }
        const std::int64_t block = table[position / kBlockSize];
        for (std::int64_t i = 0; i < width; ++i) {
          keys.set(block, position % kBlockSize * width + i, random.uniform(-1.0F, 1.0F));
          values.set(block, position % kBlockSize * width + i, random.uniform(-1.0F, 1.0F));
        }
      }
    }
  }

  HostTensor keys;    // [blocks, 16, kv_heads, head_dim]
  HostTensor values;  // like keys
  HostTensor tables;  // i32 [sequences, max_blocks]
};

class CudaAttention : public CudaTest {
 protected:
  struct Batch {
    Shape shape;
    std::vector<Sequence> sequences;
    Twin query;  // [tokens, heads, head_dim]
    Twin keys;
    Twin values;
    Twin tables;
    Twin slopes;  // [heads]
    Bound bound;
  };

  Batch make_batch(const Shape& shape, const std::vector<Sequence>& sequences, std::uint64_t seed) {
    RandomFill random(seed);
    const CacheValues cache(shape, sequences, random);
    std::int64_t num_tokens = 0;
    std::int64_t longest = 0;
    for (const Sequence& s : sequences) {
      num_tokens += s.query;
      longest = std::max<std::int64_t>(longest, s.cached + s.query);
    }
    HostTensor slopes(DType::kFloat32, {shape.heads()});
    random.fill(slopes, 0.001F, kLargestSlope);
    // A weight is as exact as its score: the sum of up to about 12 and of what ALiBi adds. Weights add up to 1 and
    // meet values of at most 1.
    const double of_alibi =
        shape.alibi ? double{kLargestSlope} * static_cast<double>(longest) * double{shape.scale()} : 0.0;
    return {
        .shape = shape,
        .sequences = sequences,
        .query = random_twin(random, shape.dtype, {num_tokens, shape.heads(), shape.head_dim}, kAlignedGuards),
        .keys = twin(cache.keys),
        .values = twin(cache.values),
        .tables = twin(cache.tables),
        .slopes = twin(slopes),
        .bound = {.family = OpFamily::kAttention, .magnitude = 12.0 + of_alibi, .rounded = shape.fast() ? 1.0 : 0.0}};
  }

  // The tokens from `begin` on as sequences of these lengths, which use block table rows from `table_row` on.
  HostTensor attend(Side side, const Batch& batch, const std::vector<Sequence>& part, std::int64_t begin,
                    std::int64_t table_row) {
    const Shape& shape = batch.shape;
    const Lengths lengths(backend(), part);
    const SequenceLengths seqlen = lengths.on(side);
    const std::int64_t num_tokens = seqlen.host_cu_query.back();
    const std::vector<std::int64_t> out_shape{num_tokens, shape.heads(), shape.head_dim};
    const DeviceTensor device_out(backend(), shape.dtype, out_shape, kAlignedGuards);
    const HostTensor reference_out(DType::kFloat32, out_shape);
    ops::attention(ctx(side),
                   {.query = batch.query.on(side).rows(begin, num_tokens),
                    .key_cache = batch.keys.on(side),
                    .value_cache = batch.values.on(side),
                    .block_tables = batch.tables.on(side).rows(table_row, std::ssize(part)),
                    .seqlen = seqlen,
                    .scale = shape.scale(),
                    .sliding_window = shape.window,
                    .alibi_slopes = shape.alibi ? batch.slopes.on(side) : Tensor()},
                   side == Side::kDevice ? device_out.view() : reference_out.view());
    return side == Side::kDevice ? device_out.download() : reference_out.clone();
  }

  enum class Alone : std::uint8_t { kSkip, kCompare };
  // The batch on both sides; then, if asked for, each of its sequences alone on the GPU.
  void compare(const Batch& batch, Alone alone) {
    const HostTensor want = attend(Side::kReference, batch, batch.sequences, 0, 0);
    expect_within(attend(Side::kDevice, batch, batch.sequences, 0, 0), want, batch.bound, batch.shape.describe());
    std::int64_t begin = 0;
    for (std::int64_t s = 0; s < std::ssize(batch.sequences) && alone == Alone::kCompare; ++s) {
      const Sequence sequence = batch.sequences[static_cast<std::size_t>(s)];
      if (sequence.query > 0) {
        expect_within(attend(Side::kDevice, batch, {sequence}, begin, s), rows_of(want, begin, sequence.query),
                      batch.bound,
                      fmt::format("{} cached and {} query tokens alone, {}", sequence.cached, sequence.query,
                                  batch.shape.describe()));
      }
      begin += sequence.query;
    }
  }
};

// Decode at and beside block borders, then prefills and chunks, one of them empty and one of a single token.
const std::vector<Sequence> kMixed{{0, 1}, {14, 1}, {15, 1}, {16, 1}, {99, 1},
                                   {0, 5}, {0, 1},  {9, 0},  {37, 5}, {0, 33}};

TEST_F(CudaAttention, MatchesReferenceOnEveryShape) {
  std::uint64_t index = 0;
  for (const DType dtype : kHalfDTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const std::int64_t group : kGroups) {
        for (const std::int64_t window : kWindows) {
          for (const bool alibi : {false, true}) {
            const Shape shape{.kv_heads = group <= 16 && index % 3 == 0 ? 2 : 1,
                              .group = group,
                              .head_dim = head_dim,
                              .window = window,
                              .alibi = alibi,
                              .dtype = dtype,
                              .cache_dtype = dtype,
                              .peaked = index % 5 < 2};
            compare(make_batch(shape, kMixed, index), index % 7 == 0 ? Alone::kCompare : Alone::kSkip);
            ++index;
          }
        }
      }
    }
  }
}

TEST_F(CudaAttention, MatchesReferenceOnLongContexts) {
  // Keys in one part, in a few and in many; rows of a batch whose shortest sequences leave parts empty.
  const std::vector<Sequence> sequences{{999, 1}, {4999, 1}, {0, 1}, {300, 1}};
  std::uint64_t index = 0;
  for (const DType dtype : kHalfDTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const std::int64_t group : {1, 8, 12, 71}) {
        for (const std::int64_t window : {0, 40, 900}) {
          const Shape shape{.kv_heads = group == 8 ? 2 : 1,
                            .group = group,
                            .head_dim = head_dim,
                            .window = window,
                            .alibi = index % 4 == 3,
                            .dtype = dtype,
                            .cache_dtype = dtype,
                            .peaked = true};
          compare(make_batch(shape, sequences, index), group == 1 ? Alone::kCompare : Alone::kSkip);
          ++index;
        }
      }
    }
  }
}

TEST_F(CudaAttention, MatchesReferenceOnLongPrefills) {
  std::uint64_t index = 0;
  for (const std::int64_t head_dim : kHeadDims) {
    for (const std::int64_t group : {1, 12, 71}) {
      for (const std::int64_t window : {0, 40}) {
        const DType dtype = kHalfDTypes[index / 2 % 2];
        const Shape shape{.group = group,
                          .head_dim = head_dim,
                          .window = window,
                          .alibi = index % 3 == 1,
                          .dtype = dtype,
                          .cache_dtype = dtype,
                          .peaked = index % 4 < 2};
        compare(make_batch(shape, {{0, 200}, {37, 64}}, index), Alone::kCompare);
        ++index;
      }
    }
  }
}

TEST_F(CudaAttention, PlainKernelMatchesReference) {
  struct Kinds {
    DType activations;
    DType cache;
  };
  constexpr std::array kKinds{Kinds{DType::kFloat32, DType::kFloat32}, Kinds{DType::kBFloat16, DType::kBFloat16},
                              Kinds{DType::kFloat16, DType::kFloat16}, Kinds{DType::kBFloat16, DType::kFloat32},
                              Kinds{DType::kFloat32, DType::kFloat16}, Kinds{DType::kFloat16, DType::kBFloat16}};
  std::uint64_t index = 0;
  for (const Kinds& kinds : kKinds) {
    for (const std::int64_t head_dim : {24, 64, 80}) {
      for (const std::int64_t window : kWindows) {
        const Shape shape{.kv_heads = 2,
                          .group = index % 2 == 0 ? 3 : 8,
                          .head_dim = head_dim,
                          .window = window,
                          .alibi = index % 3 == 1,
                          .dtype = kinds.activations,
                          .cache_dtype = kinds.cache,
                          .peaked = index % 4 < 2};
        std::vector<Sequence> sequences = kMixed;
        sequences.insert(sequences.begin(), {999, 1});
        compare(make_batch(shape, sequences, index), index % 5 == 0 ? Alone::kCompare : Alone::kSkip);
        ++index;
      }
    }
  }
}

TEST_F(CudaAttention, TakesNoTokens) {
  const Shape shape{.group = 4, .dtype = DType::kBFloat16, .cache_dtype = DType::kBFloat16};
  EXPECT_EQ(attend(Side::kDevice, make_batch(shape, {}, 1), {}, 0, 0).view().dim(0), 0);
}

}  // namespace
}  // namespace shoal
