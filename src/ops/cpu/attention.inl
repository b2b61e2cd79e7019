// Attention of a tile of query rows over cache blocks. Included by kernels_<isa>.cc inside its unnamed namespace.
// A query's result depends on its own keys alone: scores add over the head in order, each block of 16 keys from the
// first visible one takes one online softmax step, and a key that a query may not see takes part in nothing.

constexpr int kStepBlocks = 4;           // blocks converted at a time, at most
constexpr int kManyHeadsStepBlocks = 1;  // the same where a tile has several KV heads
constexpr std::int64_t kStepKeys = std::int64_t{kStepBlocks} * kPanelRows;
constexpr int kSubRows = kMaxRows < 8 ? 4 : 8;  // rows computed together

constexpr std::int64_t padded_head(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// The tile's working memory, all float32.
struct AttentionScratch {
  float* query;    // [rows / sub rows][head_dim][sub rows]
  float* keys;     // [step blocks][head_dim][16]
  float* values;   // [step keys][padded head]
  float* scores;   // [sub rows][step keys]
  float* sums;     // [rows][padded head]
  float* largest;  // [rows]
  float* total;    // [rows]
};

std::int64_t attention_scratch(std::int64_t rows, std::int64_t head_dim) {
  const std::int64_t width = padded_head(head_dim);
  return rows * width * 2 + kStepKeys * width * 2 + kSubRows * kStepKeys + (rows + 15) / 16 * 32;
}

AttentionScratch split_scratch(const AttentionTile& tile) {
  const std::int64_t width = padded_head(tile.head_dim);
  const std::int64_t rows = (tile.row_end - tile.row_begin) * tile.kv_heads;
  AttentionScratch scratch{};
  scratch.query = tile.scratch;
  scratch.keys = scratch.query + rows * width;
  scratch.values = scratch.keys + kStepKeys * width;
  scratch.scores = scratch.values + kStepKeys * width;
  scratch.sums = scratch.scores + kSubRows * kStepKeys;
  scratch.largest = scratch.sums + rows * width;
  scratch.total = scratch.largest + (rows + 15) / 16 * 16;
  return scratch;
}

struct KeyRange {
  std::int64_t begin;
  std::int64_t end;
};

// Positions that row `row` of the sequence sees.
[[gnu::always_inline]] inline KeyRange visible(const AttentionTile& tile, std::int64_t row) {
  const std::int64_t position = tile.first_position + row / tile.group;
  const std::int64_t begin = tile.window > 0 && position + 1 > tile.window ? position + 1 - tile.window : 0;
  return {begin, position + 1};
}

// Lanes of block `block` in `range`; empty if end <= begin.
[[gnu::always_inline]] inline KeyRange lanes_of(KeyRange range, std::int64_t block) {
  const std::int64_t first = block * kPanelRows;
  const std::int64_t begin = range.begin > first ? range.begin - first : 0;
  const std::int64_t end = range.end < first + kPanelRows ? range.end - first : kPanelRows;
  return {begin, end};
}

template <Element E>
[[gnu::always_inline]] inline __m256i load_8_words(const typename Stored<E>::Type* p) {
  if constexpr (E == Element::kFloat16) {
    return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  } else {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));  // 8 floats, or 16 bf16
  }
}

// Sixteen keys, `stride` apart, to float32 [head_dim][16].
template <Element E>
void transpose_keys(const typename Stored<E>::Type* keys, std::int64_t stride, std::int64_t head_dim, float* out) {
  constexpr std::int64_t kColumns = E == Element::kBFloat16 ? 16 : 8;  // of one 8 x 8 transposition
  std::int64_t d = 0;
  for (; d + kColumns <= head_dim; d += kColumns) {
    for (std::int64_t half = 0; half < 2; ++half) {
      __m256i v[8];
      for (int i = 0; i < 8; ++i) v[i] = load_8_words<E>(keys + (half * 8 + i) * stride + d);
      transpose_8x8(v);
      float* to = out + d * kPanelRows + half * 8;
      for (std::int64_t i = 0; i < 8; ++i) {
        if constexpr (E == Element::kBFloat16) {
          store_8_words(to + 2 * i * kPanelRows, _mm256_slli_epi32(v[i], 16));
          store_8_words(to + (2 * i + 1) * kPanelRows,
                        _mm256_and_si256(v[i], _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
        } else {
          store_8_words(to + i * kPanelRows, v[i]);
        }
      }
    }
  }
  const std::int64_t rest = head_dim - d;
  if (rest == 0) return;
  for (std::int64_t key = 0; key < kPanelRows; ++key) {
    float wide[16];
    store(wide, load_first_as<E>(keys + key * stride + d, rest));
    for (std::int64_t i = 0; i < rest; ++i) out[(d + i) * kPanelRows + key] = wide[i];
  }
}

// Sixteen values to float32 [16][padded head], zero past the head.
template <Element E>
void widen_values(const typename Stored<E>::Type* values, std::int64_t stride, std::int64_t head_dim, float* out) {
  const std::int64_t width = padded_head(head_dim);
  for (std::int64_t key = 0; key < kPanelRows; ++key) {
    std::int64_t d = 0;
    for (; d + 16 <= head_dim; d += 16) store(out + key * width + d, load_as<E>(values + key * stride + d));
    if (d < head_dim) store(out + key * width + d, load_first_as<E>(values + key * stride + d, head_dim - d));
  }
}

// Plain dot products of Rows queries with the keys of `Blocks` blocks.
template <int Rows, int Blocks>
void score_blocks(const float* query, const float* keys, std::int64_t head_dim, float* scores) {
  const char* blocks[Blocks];
  unroll<Blocks>([&](auto block) __attribute__((always_inline)) {
    blocks[block.value] = reinterpret_cast<const char*>(keys + block.value * head_dim * kPanelRows);
  });
  Accumulators<Rows * Blocks> sums;
  unroll<Rows * Blocks>([&](auto i) __attribute__((always_inline)) { sums.v[i.value] = zero(); });
  for (std::int64_t d = 0; d < head_dim; ++d) multiply_step<Rows, Blocks, Element::kFloat32>(query, blocks, d, sums);
  unroll<Rows * Blocks>([&](auto i) __attribute__((always_inline)) {
    store(scores + i.value / Blocks * kStepKeys + i.value % Blocks * kPanelRows, sums.v[i.value]);
  });
}

template <int Rows>
void score_rows(const float* query, const float* keys, std::int64_t head_dim, std::int64_t num_blocks, float* scores) {
  constexpr int kTogether = Rows == 1 ? 4 : (Rows == 2 ? 2 : 1);  // enough chains to hide the latency
  std::int64_t block = 0;
  for (; block + kTogether <= num_blocks; block += kTogether) {
    score_blocks<Rows, kTogether>(query, keys + block * head_dim * kPanelRows, head_dim, scores + block * kPanelRows);
  }
  for (; block < num_blocks; ++block) {
    score_blocks<Rows, 1>(query, keys + block * head_dim * kPanelRows, head_dim, scores + block * kPanelRows);
  }
}

// sums[row] = sums[row] * correction[row] + weights[row][lanes] . values[lanes], keys in order.
template <int Rows>
void add_values(const float* weights, const float* correction, const float* values, KeyRange lanes, std::int64_t width,
                float* sums) {
  Accumulators<Rows> scale;
  unroll<Rows>([&](auto row) __attribute__((always_inline)) { scale.v[row.value] = broadcast(correction[row.value]); });
  for (std::int64_t d = 0; d < width; d += 16) {
    Accumulators<Rows> sum;
    unroll<Rows>([&](auto row) __attribute__((always_inline)) {
      sum.v[row.value] = mul(load(sums + row.value * width + d), scale.v[row.value]);
    });
    for (std::int64_t key = lanes.begin; key < lanes.end; ++key) {
      const Vec value = load(values + key * width + d);
      unroll<Rows>([&](auto row) __attribute__((always_inline)) {
        sum.v[row.value] = fma(broadcast(weights[row.value * kStepKeys + key]), value, sum.v[row.value]);
      });
    }
    unroll<Rows>([&](auto row)
                     __attribute__((always_inline)) { store(sums + row.value * width + d, sum.v[row.value]); });
  }
}

// By the number of rows of a sub tile.
struct RowKernels {
  void (*score)(const float* query, const float* keys, std::int64_t head_dim, std::int64_t num_blocks, float* scores);
  void (*add)(const float* weights, const float* correction, const float* values, KeyRange lanes, std::int64_t width,
              float* sums);
};
struct RowKernelTable {
  RowKernels by_rows[kSubRows + 1];
};
constexpr RowKernelTable make_row_kernels() {
  RowKernelTable table{};
  unroll<kSubRows>(
      [&](auto row) { table.by_rows[row.value + 1] = {score_rows<row.value + 1>, add_values<row.value + 1>}; });
  return table;
}

struct SubTile {
  std::int64_t row;   // first row of the sequence
  std::int64_t rows;  // at most kSubRows
  float* sums;
  float* largest;
  float* total;
};

// One online softmax step of one row: scores become weights; returns what earlier sums are multiplied by.
[[gnu::always_inline]] inline float softmax_step(const AttentionTile& tile, std::int64_t row, std::int64_t block,
                                                 KeyRange lanes, float* scores, float& largest, float& total) {
  Vec score = load(scores);
  if (tile.slopes != nullptr) {
    const Vec position = add(broadcast(static_cast<float>(block * kPanelRows)), iota());
    score = fma(broadcast(tile.slopes[row % tile.group]), position, score);
  }
  const Vec hidden = broadcast(-__builtin_inff());
  score = keep_lanes(mul(score, broadcast(tile.scale)), lanes.begin, lanes.end, hidden);
  const float block_largest = largest_of(score);
  const float now_largest = block_largest > largest ? block_largest : largest;
  const Vec weight = exponential(sub(score, broadcast(now_largest)));
  const Vec change = exponential(broadcast(largest - now_largest));
  float correction[16];
  store(correction, change);
  store(scores, weight);
  total = total * correction[0] + sum_of(weight);
  largest = now_largest;
  return correction[0];
}

// One block for the rows of a sub tile.
void attend_block(const AttentionTile& tile, const SubTile& sub, std::int64_t block, float* scores, const float* values,
                  const RowKernelTable& kernels) {
  const std::int64_t width = padded_head(tile.head_dim);
  float correction[kSubRows];
  KeyRange lanes[kSubRows];
  bool same = true;
  for (std::int64_t i = 0; i < sub.rows; ++i) {
    lanes[i] = lanes_of(visible(tile, sub.row + i), block);
    same = same && lanes[i].begin == lanes[0].begin && lanes[i].end == lanes[0].end;
    if (lanes[i].end <= lanes[i].begin) continue;
    correction[i] =
        softmax_step(tile, sub.row + i, block, lanes[i], scores + i * kStepKeys, sub.largest[i], sub.total[i]);
  }
  if (same) {
    if (lanes[0].end > lanes[0].begin) {
      kernels.by_rows[sub.rows].add(scores, correction, values, lanes[0], width, sub.sums);
    }
    return;
  }
  for (std::int64_t i = 0; i < sub.rows; ++i) {
    if (lanes[i].end <= lanes[i].begin) continue;
    kernels.by_rows[1].add(scores + i * kStepKeys, correction + i, values, lanes[i], width, sub.sums + i * width);
  }
}

// Queries row by row to [sub tile][head_dim][sub rows]; sums start empty.
void start_rows(const AttentionTile& tile, const AttentionScratch& scratch) {
  const std::int64_t rows = tile.row_end - tile.row_begin;
  const std::int64_t width = padded_head(tile.head_dim);
  for (std::int64_t first = 0; first < rows; first += kSubRows) {
    const std::int64_t count = rows - first < kSubRows ? rows - first : kSubRows;
    float* packed = scratch.query + first * tile.head_dim;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = tile.row_begin + first + i;
      const float* query = tile.query + row / tile.group * tile.query_stride + row % tile.group * tile.head_dim;
      for (std::int64_t d = 0; d < tile.head_dim; ++d) packed[d * count + i] = query[d];
    }
  }
  for (std::int64_t i = 0; i < rows * width; ++i) scratch.sums[i] = 0.0F;
  for (std::int64_t i = 0; i < rows; ++i) {
    scratch.largest[i] = -__builtin_inff();
    scratch.total[i] = 0.0F;
  }
}

void finish_rows(const AttentionTile& tile, const AttentionScratch& scratch) {
  const std::int64_t width = padded_head(tile.head_dim);
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const float* sums = scratch.sums + (row - tile.row_begin) * width;
    float* out = tile.out + row / tile.group * tile.out_stride + row % tile.group * tile.head_dim;
    const Vec total = broadcast(scratch.total[row - tile.row_begin]);
    std::int64_t d = 0;
    for (; d + 16 <= tile.head_dim; d += 16) store(out + d, div(load(sums + d), total));
    if (d < tile.head_dim) store_first(out + d, div(load(sums + d), total), tile.head_dim - d);
  }
}

// Asks for keys and values of one head: short pieces far apart, which no hardware prefetcher follows.
template <Element E>
void prefetch_blocks(const AttentionTile& tile, std::int64_t begin, std::int64_t num_blocks) {
  using Type = typename Stored<E>::Type;
  const auto num_bytes = tile.head_dim * static_cast<std::int64_t>(sizeof(Type));
  for (std::int64_t block = begin; block < begin + num_blocks; ++block) {
    const std::int64_t at = std::int64_t{tile.block_table[block]} * kPanelRows * tile.token_stride;
    for (std::int64_t key = 0; key < kPanelRows; ++key) {
      const std::int64_t row = at + key * tile.token_stride;
      const char* key_bytes = reinterpret_cast<const char*>(static_cast<const Type*>(tile.keys) + row);
      const char* value_bytes = reinterpret_cast<const char*>(static_cast<const Type*>(tile.values) + row);
      for (std::int64_t byte = 0; byte < num_bytes; byte += 64) {
        _mm_prefetch(key_bytes + byte, _MM_HINT_T0);
        _mm_prefetch(value_bytes + byte, _MM_HINT_T0);
      }
    }
  }
}

// A tile's view of one of its KV heads.
struct HeadTile {
  AttentionTile tile;
  AttentionScratch scratch;
};
template <Element E>
HeadTile head_of(const AttentionTile& tile, const AttentionScratch& scratch, std::int64_t head) {
  using Type = typename Stored<E>::Type;
  const std::int64_t rows = tile.row_end - tile.row_begin;
  HeadTile one{tile, scratch};
  one.tile.query += head * tile.group * tile.head_dim;
  one.tile.out += head * tile.group * tile.head_dim;
  one.tile.keys = static_cast<const Type*>(tile.keys) + head * tile.head_dim;
  one.tile.values = static_cast<const Type*>(tile.values) + head * tile.head_dim;
  if (tile.slopes != nullptr) one.tile.slopes += head * tile.group;
  one.scratch.query += head * rows * tile.head_dim;
  one.scratch.sums += head * rows * padded_head(tile.head_dim);
  one.scratch.largest += head * rows;
  one.scratch.total += head * rows;
  return one;
}

// Blocks [begin, begin + num_blocks) of one head to floats.
template <Element E>
void convert_blocks(const AttentionTile& tile, const AttentionScratch& scratch, std::int64_t begin,
                    std::int64_t num_blocks) {
  using Type = typename Stored<E>::Type;
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    const std::int64_t at = std::int64_t{tile.block_table[begin + i]} * kPanelRows * tile.token_stride;
    transpose_keys<E>(static_cast<const Type*>(tile.keys) + at, tile.token_stride, tile.head_dim,
                      scratch.keys + i * tile.head_dim * kPanelRows);
    widen_values<E>(static_cast<const Type*>(tile.values) + at, tile.token_stride, tile.head_dim,
                    scratch.values + i * kPanelRows * padded_head(tile.head_dim));
  }
}

// All rows of one KV head over converted blocks [begin, begin + num_blocks).
void attend_blocks(const HeadTile& head, std::int64_t begin, std::int64_t num_blocks, const RowKernelTable& kernels) {
  const AttentionTile& tile = head.tile;
  const AttentionScratch& scratch = head.scratch;
  const std::int64_t width = padded_head(tile.head_dim);
  const std::int64_t rows = tile.row_end - tile.row_begin;
  for (std::int64_t first = 0; first < rows; first += kSubRows) {
    const SubTile sub{tile.row_begin + first, rows - first < kSubRows ? rows - first : kSubRows,
                      scratch.sums + first * width, scratch.largest + first, scratch.total + first};
    const std::int64_t seen_begin = visible(tile, sub.row).begin;
    const std::int64_t seen_end = visible(tile, sub.row + sub.rows - 1).end;
    if (seen_end <= begin * kPanelRows || seen_begin >= (begin + num_blocks) * kPanelRows) continue;
    kernels.by_rows[sub.rows].score(scratch.query + first * tile.head_dim, scratch.keys, tile.head_dim, num_blocks,
                                    scratch.scores);
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      attend_block(tile, sub, begin + i, scratch.scores + i * kPanelRows, scratch.values + i * kPanelRows * width,
                   kernels);
    }
  }
}

// With several KV heads the tile goes through a block head by head: a token's heads lie side by side, so that memory
// is read in order, where one head alone would take a short piece out of each token's row.
template <Element E>
void attention_tile(const AttentionTile& tile) {
  static constexpr RowKernelTable kKernels = make_row_kernels();
  const AttentionScratch scratch = split_scratch(tile);
  for (std::int64_t head = 0; head < tile.kv_heads; ++head) {
    const HeadTile one = head_of<E>(tile, scratch, head);
    start_rows(one.tile, one.scratch);
  }
  const std::int64_t first_block = visible(tile, tile.row_begin).begin / kPanelRows;
  const std::int64_t end_block = (visible(tile, tile.row_end - 1).end + kPanelRows - 1) / kPanelRows;
  const std::int64_t step_blocks = tile.kv_heads > 1 ? kManyHeadsStepBlocks : kStepBlocks;
  for (std::int64_t begin = first_block; begin < end_block; begin += step_blocks) {
    const std::int64_t num_blocks = end_block - begin < step_blocks ? end_block - begin : step_blocks;
    for (std::int64_t head = 0; head < tile.kv_heads; ++head) {
      const HeadTile one = head_of<E>(tile, scratch, head);
      if (head + 1 < tile.kv_heads) {
        prefetch_blocks<E>(head_of<E>(tile, scratch, head + 1).tile, begin, num_blocks);
      } else {
        const std::int64_t next = begin + step_blocks;
        prefetch_blocks<E>(tile, next, end_block - next < step_blocks ? end_block - next : step_blocks);
      }
      convert_blocks<E>(one.tile, one.scratch, begin, num_blocks);
      attend_blocks(one, begin, num_blocks, kKernels);
    }
  }
  for (std::int64_t head = 0; head < tile.kv_heads; ++head) {
    const HeadTile one = head_of<E>(tile, scratch, head);
    finish_rows(one.tile, one.scratch);
  }
}

void fill_attention(KernelTable& table) {
  table.attention_sub_rows = kSubRows;
  table.attention_scratch = attention_scratch;
  table.attention_tile[0] = attention_tile<Element::kFloat32>;
  table.attention_tile[1] = attention_tile<Element::kBFloat16>;
  table.attention_tile[2] = attention_tile<Element::kFloat16>;
}
