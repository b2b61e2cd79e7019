#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/panels.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kPrefetchBytes = 1024;
constexpr std::int64_t kBlockSteps = 256;   // of K at a time when several tiles share the weights
constexpr std::int64_t kRowsTogether = 96;  // their packed rows stay in the second cache
constexpr std::int64_t kPanelsTogether = 8;
constexpr std::int64_t kTasksPerThread = 8;

// One product: the tiles of x, spread evenly, and what a tile call needs of them.
struct Product {
  const KernelTable& kernels;
  Panels panels;
  const void* weight;
  const Tensor& x;
  const float* bias;  // or null
  const Tensor& out;
  bool accumulate;
  bool pairs;               // x as pairs of bf16 and what rounding left
  std::int64_t rows;        // of x
  std::int64_t num_tiles;   // of rows
  std::int64_t wide;        // panels of a wide tile call
  std::int64_t step_bytes;  // of one packed row
  char* packed = nullptr;

  std::int64_t tile_begin(std::int64_t tile) const { return tile * rows / num_tiles; }
  std::int64_t tile_rows(std::int64_t tile) const { return tile_begin(tile + 1) - tile_begin(tile); }
};

Product plan(const KernelTable& kernels, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
             const Tensor& out) {
  const Panels panels(element_of(weight.dtype), weight.rows, weight.cols);
  const std::int64_t rows = x.dim(0);
  const bool bf16 = panels.element == Element::kBFloat16;
  const bool pairs = bf16 && kernels.bf16_pairs;
  const std::int64_t num_tiles = (rows + kernels.max_tile_rows - 1) / kernels.max_tile_rows;
  const std::int64_t most_rows = (rows + num_tiles - 1) / num_tiles;
  return {.kernels = kernels,
          .panels = panels,
          .weight = weight.storage.raw(),
          .x = x,
          .bias = bias.defined() ? bias.data<float>() : nullptr,
          .out = out,
          .accumulate = mode == MatmulOutput::kAccumulate,
          .pairs = pairs,
          .rows = rows,
          .num_tiles = num_tiles,
          .wide = kernels.wide_panels[most_rows],
          .step_bytes = bf16 ? 8 : 4};
}

void pack_tile(const Product& product, std::int64_t tile) {
  PackX pack;
  pack.x = product.x.row<float>(product.tile_begin(tile));
  pack.row_stride = product.x.row_stride();
  pack.rows = product.tile_rows(tile);
  pack.columns = product.x.dim(1);
  pack.padded_columns = product.panels.element == Element::kBFloat16 ? 2 * product.panels.steps : pack.columns;
  pack.packed = product.packed + product.tile_begin(tile) * product.panels.steps * product.step_bytes;
  (product.pairs ? product.kernels.pack_pairs : product.kernels.pack_floats)(pack);
}

// A range of K, in steps.
struct Steps {
  std::int64_t begin;
  std::int64_t end;
};

// One tile of rows times `count` panels; the wide kernel where all its panels are there.
void multiply(const Product& product, std::int64_t tile, std::int64_t panel, std::int64_t count, Steps steps,
              float* partial) {
  const Panels& panels = product.panels;
  const std::int64_t rows = product.tile_rows(tile);
  MatmulTile call;
  call.x = product.packed + (product.tile_begin(tile) * panels.steps + steps.begin * rows) * product.step_bytes;
  call.panel_bytes = panels.panel_bytes;
  call.steps = steps.end - steps.begin;
  call.out_stride = product.out.row_stride();
  call.prefetch_bytes = kPrefetchBytes;
  call.first = steps.begin == 0;
  call.last = steps.end == panels.steps;
  call.accumulate = product.accumulate;
  const std::int64_t together = count == product.wide ? product.wide : 1;
  const auto& kernels = product.kernels.matmul_tile[static_cast<int>(panels.element)][rows];
  for (std::int64_t p = panel; p < panel + count; p += together) {
    const std::int64_t column = p * kPanelRows;
    call.weight = static_cast<const char*>(product.weight) + p * panels.panel_bytes + steps.begin * panels.step_bytes;
    call.partial = partial + (p - panel) * rows * kPanelRows;
    call.bias = product.bias == nullptr ? nullptr : product.bias + column;
    call.out = product.out.row<float>(product.tile_begin(tile)) + column;
    call.columns = std::min(product.out.dim(1) - column, together * kPanelRows);
    kernels[together == 1 ? 0 : 1](call);
  }
}

// Few rows: each panel is read once, from end to end, against all of them.
void multiply_few(ThreadPool& pool, const Product& product) {
  const Panels& panels = product.panels;
  const std::int64_t groups = (panels.count + product.wide - 1) / product.wide;
  const std::int64_t most = std::max<std::int64_t>(1, panels.count * panels.panel_bytes / kSmallWorkBytes);
  const std::int64_t num_tasks = std::min({groups, most, pool.num_threads() * kTasksPerThread});
  pool.parallel_for(num_tasks, [&](std::int64_t task) {
    for (std::int64_t group = task * groups / num_tasks; group < (task + 1) * groups / num_tasks; ++group) {
      const std::int64_t panel = group * product.wide;
      multiply(product, 0, panel, std::min(product.wide, panels.count - panel), {0, panels.steps}, nullptr);
    }
  });
}

// Many rows: a block of K of a few panels stays in the first cache while tile after tile passes over it. Sums wait in
// `partial` between blocks, which keeps their order.
void multiply_many(ThreadPool& pool, const Product& product, Arena& arena) {
  const Panels& panels = product.panels;
  const std::int64_t tiles_together = std::max<std::int64_t>(1, kRowsTogether / product.kernels.max_tile_rows);
  const std::int64_t row_chunks = (product.num_tiles + tiles_together - 1) / tiles_together;
  std::int64_t panels_together = kPanelsTogether;
  while (panels_together > product.wide &&
         row_chunks * (panels.count / panels_together) < std::int64_t{3} * pool.num_threads()) {
    panels_together /= 2;
  }
  const std::int64_t panel_chunks = (panels.count + panels_together - 1) / panels_together;
  const std::int64_t partial_floats = (kRowsTogether + kMaxTileRows) * kPanelsTogether * kPanelRows;
  float* partials = arena.take(DType::kFloat32, {pool.num_threads(), partial_floats}).data<float>();
  parallel_slots(pool, row_chunks * panel_chunks, [&](std::int64_t slot, std::int64_t task) {
    const std::int64_t tile_begin = task % row_chunks * product.num_tiles / row_chunks;
    const std::int64_t tile_end = (task % row_chunks + 1) * product.num_tiles / row_chunks;
    const std::int64_t panel_begin = task / row_chunks * panels_together;
    const std::int64_t panel_end = std::min(panel_begin + panels_together, panels.count);
    for (std::int64_t step = 0; step < panels.steps; step += kBlockSteps) {
      float* partial = partials + slot * partial_floats;
      for (std::int64_t panel = panel_begin; panel < panel_end; panel += product.wide) {
        const std::int64_t count = std::min(product.wide, panel_end - panel);
        for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
          multiply(product, tile, panel, count, {step, std::min(step + kBlockSteps, panels.steps)}, partial);
          partial += product.tile_rows(tile) * count * kPanelRows;
        }
      }
    }
  });
}

}  // namespace

void CpuBackend::matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                        const Tensor& out) const {
  if (x.dim(0) == 0) return;
  Product product = plan(kernels_, x, weight, bias, mode, out);
  const Arena::Scope scope(ctx.arena);
  const bool padded = product.panels.element == Element::kBFloat16 && weight.cols % 2 != 0;
  if (product.rows == 1 && !product.pairs && !padded) {
    product.packed = static_cast<char*>(x.raw());  // one row is packed as it stands
  } else {
    const std::int64_t row_bytes = product.panels.steps * product.step_bytes;
    product.packed = static_cast<char*>(ctx.arena.take(DType::kInt8, {product.rows, row_bytes}).raw());
    parallel_rows(pool_, product.num_tiles, row_bytes * kernels_.max_tile_rows,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t tile = begin; tile < end; ++tile) pack_tile(product, tile);
                  });
  }
  if (product.num_tiles == 1) {
    multiply_few(pool_, product);
  } else {
    multiply_many(pool_, product, ctx.arena);
  }
}

}  // namespace shoal::cpu
