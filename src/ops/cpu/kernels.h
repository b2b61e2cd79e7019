// KernelTable: the inner loops of the CPU backend for one instruction set, as plain functions over plain pointers.
// Filled by kernels_<isa>.cc, called by the other files of this folder. Nothing inline may be shared through here:
// the linker would keep one copy, compiled for whichever instruction set came first.
#pragma once

#include <cstdint>

namespace shoal::cpu {

// Storage of one number; the index of per-type kernels.
enum class Element : int { kFloat32, kBFloat16, kFloat16 };
inline constexpr int kElements = 3;

// Weight rows of a panel, and floats of the kernels' vector: lane i of a panel's vector is its row i.
inline constexpr int kPanelRows = 16;
inline constexpr int kMaxTileRows = 12;  // over all instruction sets

// Some rows of x against one or more neighbouring panels, over a range of K.
struct MatmulTile {
  const void* x = nullptr;       // [steps][rows] float32, or [steps][rows][2] pairs where the set multiplies those
  const void* weight = nullptr;  // first panel, at the first step
  std::int64_t panel_bytes = 0;  // from one panel to the next
  std::int64_t steps = 0;        // k, or pairs of k for bf16 weights
  float* partial = nullptr;      // [rows][panels * 16]: sums so far, read unless `first`, written unless `last`
  const float* bias = nullptr;   // [columns] or null
  float* out = nullptr;          // [rows][columns]
  std::int64_t out_stride = 0;
  std::int64_t columns = 0;         // at most panels * 16
  std::int64_t prefetch_bytes = 0;  // how far ahead in each panel to prefetch
  bool first = true;
  bool last = true;
  bool accumulate = false;  // out += ...
};
using MatmulTileFn = void (*)(const MatmulTile& tile);

// Rows of x to the order in which a tile reads them.
struct PackX {
  const float* x = nullptr;  // [rows][columns]
  std::int64_t row_stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t padded_columns = 0;  // columns, or one more that is zero
  void* packed = nullptr;           // [padded_columns][rows] float32, or [padded_columns / 2][rows][2] bf16 pairs
};

// Rows of a plain matrix into one panel.
struct PackPanel {
  const void* source = nullptr;  // [count][columns]
  Element source_element = Element::kFloat32;
  std::int64_t source_stride_bytes = 0;
  std::int64_t count = 0;
  std::int64_t lane = 0;  // panel row of the first source row
  std::int64_t columns = 0;
  void* panel = nullptr;
  Element element = Element::kFloat32;
};

// One row of a packed matrix as floats.
struct UnpackRow {
  const void* panel = nullptr;
  Element element = Element::kFloat32;
  std::int64_t lane = 0;
  std::int64_t columns = 0;
  float* out = nullptr;
  bool accumulate = false;
};

// Queries of one sequence under neighbouring KV heads: row r of a KV head is query token r / group, its head r % group.
struct AttentionTile {
  const float* query = nullptr;  // first query token, first head of the group
  std::int64_t query_stride = 0;
  float* out = nullptr;  // like query
  std::int64_t out_stride = 0;
  const void* keys = nullptr;     // block 0 at this KV head
  const void* values = nullptr;   // block 0 at this KV head
  std::int64_t token_stride = 0;  // elements from one token of a block to the next
  const std::int32_t* block_table = nullptr;
  const float* slopes = nullptr;  // first head of the group, or null
  std::int64_t head_dim = 0;
  std::int64_t group = 0;
  std::int64_t kv_heads = 1;  // the pointers are at the first
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t first_position = 0;  // of query token 0
  std::int64_t window = 0;          // 0: all
  float scale = 1.0F;
  float* scratch = nullptr;  // attention_scratch floats
};

// shrunk[t][r] = scale * (x[token_rows[t]] . a[r]) for r in [rank_begin, rank_end).
struct LoraShrink {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* token_rows = nullptr;
  std::int64_t tokens = 0;
  const void* a = nullptr;  // [rank][columns]
  std::int64_t a_stride = 0;
  std::int64_t columns = 0;
  std::int64_t rank_begin = 0;
  std::int64_t rank_end = 0;
  float scale = 0.0F;
  float* shrunk = nullptr;
  std::int64_t shrunk_stride = 0;
};

// out[token_rows[t]][column] += sum over r of shrunk[t][r] * b[r][column], for `columns` columns.
struct LoraExpand {
  const float* shrunk = nullptr;
  std::int64_t shrunk_stride = 0;
  const std::int32_t* token_rows = nullptr;
  std::int64_t tokens = 0;
  const void* b = nullptr;  // [rank][...], at the first column
  std::int64_t b_stride = 0;
  std::int64_t rank = 0;
  std::int64_t columns = 0;
  float* out = nullptr;  // at the first column
  std::int64_t out_stride = 0;
};

struct RotaryRow {
  float* x = nullptr;  // [heads][head_dim]
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  const float* cos_sin = nullptr;  // [rotary_dim]
  std::int64_t rotary_dim = 0;
  bool neighbours = false;
};

struct RowScan {
  float largest = 0.0F;
  std::int64_t argmax = 0;  // the first one
  bool unusable = false;    // a NaN or +infinity
};

struct KernelTable {
  // Sets that multiply bf16 pairs take x as pairs for bf16 weights.
  bool bf16_pairs = false;
  int max_tile_rows = 0;
  int wide_panels[kMaxTileRows + 1] = {};                         // panels of the wide variant, by rows
  MatmulTileFn matmul_tile[kElements][kMaxTileRows + 1][2] = {};  // by element, rows, {one panel, wide}
  void (*pack_floats)(const PackX& pack) = nullptr;
  void (*pack_pairs)(const PackX& pack) = nullptr;
  void (*pack_panel)(const PackPanel& pack) = nullptr;
  void (*unpack_row)(const UnpackRow& unpack) = nullptr;
  void (*store_floats[kElements])(const float* x, std::int64_t count, void* out) = {};

  int attention_sub_rows = 0;  // rows that a tile computes at a time
  // Floats of scratch for so many rows over all KV heads of a tile.
  std::int64_t (*attention_scratch)(std::int64_t rows, std::int64_t head_dim) = nullptr;
  void (*attention_tile[kElements])(const AttentionTile& tile) = {};

  void (*lora_shrink[kElements])(const LoraShrink& task) = {};
  void (*lora_expand[kElements])(const LoraExpand& task) = {};

  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::int64_t width, float* out) = nullptr;
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, std::int64_t width,
                     float* out) = nullptr;
  void (*rotary)(const RotaryRow& row) = nullptr;
  // By Activation; `up` null: out = f(x), else out = f(x) * up.
  void (*activation[4])(const float* x, const float* up, std::int64_t count, float* out) = {};
  void (*add)(const float* a, const float* b, std::int64_t count, float* out) = nullptr;
  void (*mix)(const float* a, const float* b, float t, std::int64_t count, float* out) = nullptr;
  void (*scale)(const float* x, float factor, std::int64_t count, float* out) = nullptr;

  RowScan (*scan_row)(const float* x, std::int64_t count) = nullptr;
  // weights = exp((x - shift) / temperature)
  void (*softmax_weights)(const float* x, float shift, float temperature, std::int64_t count, float* weights) = nullptr;
  double (*sum)(const float* x, std::int64_t count) = nullptr;
};

const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512bf16_kernels();

}  // namespace shoal::cpu
