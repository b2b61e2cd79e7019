#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kMaxTileQueries = 64;  // query rows of a tile, over all its KV heads

constexpr std::int64_t kTasksPerThread = 3;

// How the work is cut: each sequence and KV head has its own row tiles.
struct AttentionPlan {
  std::int64_t group;  // query heads of a KV head
  std::int64_t kv_heads;
  std::int64_t tile_rows;        // query rows of a KV head in a tile
  std::int64_t most_heads;       // KV heads of a tile, if its rows allow
  const std::int64_t* cu_tasks;  // [sequences + 1], cumulative
  std::int64_t sequences;

  std::int64_t row_tiles(std::int64_t rows) const { return (rows + tile_rows - 1) / tile_rows; }
  // Sequences of few rows go through several KV heads side by side.
  std::int64_t heads_together(std::int64_t rows) const {
    return rows == 0 ? 1 : std::clamp(kMaxTileQueries / rows, std::int64_t{1}, most_heads);
  }
  std::int64_t tasks(std::int64_t rows) const {
    const std::int64_t heads = heads_together(rows);
    return row_tiles(rows) * ((kv_heads + heads - 1) / heads);
  }
};

// Large tiles convert each key least often; smaller ones give every thread work.
std::int64_t choose_tile_rows(const AttentionInput& in, std::int64_t kv_heads, std::int64_t group, int num_threads,
                              std::int64_t sub_rows) {
  std::int64_t query_rows = 0;
  for (const std::int32_t count : in.seqlen.host_query) query_rows += count * group;
  const std::int64_t share = (query_rows * kv_heads + num_threads - 1) / num_threads;
  const std::int64_t rounded = (share + sub_rows - 1) / sub_rows * sub_rows;
  return std::clamp(rounded, sub_rows, kMaxTileQueries);
}

AttentionTile make_tile(const AttentionInput& in, const Tensor& out, const AttentionPlan& plan, std::int64_t task) {
  const auto* after = std::upper_bound(plan.cu_tasks, plan.cu_tasks + plan.sequences + 1, task);
  const std::int64_t sequence = after - plan.cu_tasks - 1;
  const auto index = static_cast<std::size_t>(sequence);
  const std::int64_t within = task - plan.cu_tasks[sequence];
  const std::int64_t rows = in.seqlen.host_query[index] * plan.group;
  const std::int64_t heads = plan.heads_together(rows);
  const std::int64_t head_chunks = (plan.kv_heads + heads - 1) / heads;
  const std::int64_t kv_head = within % head_chunks * heads;
  const std::int64_t tile_index = plan.row_tiles(rows) - 1 - within / head_chunks;  // the longest first
  const std::int64_t head_dim = in.query.dim(2);
  const std::int64_t first_token = in.seqlen.host_cu_query[index];
  const std::int64_t head_offset = kv_head * plan.group * head_dim;
  const std::int64_t cache_offset = kv_head * head_dim * dtype_bytes(in.key_cache.dtype());
  AttentionTile tile;
  tile.query = in.query.row<float>(first_token) + head_offset;
  tile.query_stride = in.query.row_stride();
  tile.out = out.row<float>(first_token) + head_offset;
  tile.out_stride = out.row_stride();
  tile.keys = static_cast<const char*>(in.key_cache.raw()) + cache_offset;
  tile.values = static_cast<const char*>(in.value_cache.raw()) + cache_offset;
  tile.token_stride = plan.kv_heads * head_dim;
  tile.block_table = in.block_tables.row<std::int32_t>(sequence);
  tile.slopes = in.alibi_slopes.defined() ? in.alibi_slopes.data<float>() + kv_head * plan.group : nullptr;
  tile.head_dim = head_dim;
  tile.group = plan.group;
  tile.kv_heads = std::min(heads, plan.kv_heads - kv_head);
  tile.row_begin = tile_index * plan.tile_rows;
  tile.row_end = std::min(tile.row_begin + plan.tile_rows, rows);
  tile.first_position = in.seqlen.host_cached[index];
  tile.window = in.sliding_window;
  tile.scale = in.scale;
  return tile;
}

}  // namespace

void CpuBackend::attention(Context& ctx, const AttentionInput& in, const Tensor& out) const {
  const std::int64_t sequences = in.seqlen.num_sequences();
  AttentionPlan plan{};
  plan.kv_heads = in.key_cache.dim(2);
  plan.group = in.query.dim(1) / plan.kv_heads;
  plan.tile_rows = choose_tile_rows(in, plan.kv_heads, plan.group, pool_.num_threads(), kernels_.attention_sub_rows);
  plan.most_heads =
      std::clamp<std::int64_t>(sequences * plan.kv_heads / (pool_.num_threads() * kTasksPerThread), 1, plan.kv_heads);
  plan.sequences = sequences;

  const Arena::Scope scope(ctx.arena);
  auto* cu_tasks = ctx.arena.take(DType::kInt64, {sequences + 1}).data<std::int64_t>();
  cu_tasks[0] = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t rows = in.seqlen.host_query[static_cast<std::size_t>(s)] * plan.group;
    cu_tasks[s + 1] = cu_tasks[s] + plan.tasks(rows);
  }
  plan.cu_tasks = cu_tasks;
  const std::int64_t scratch_floats = (kernels_.attention_scratch(kMaxTileQueries, in.query.dim(2)) + 15) / 16 * 16;
  float* scratch = ctx.arena.take(DType::kFloat32, {pool_.num_threads(), scratch_floats}).data<float>();
  const auto kernel = kernels_.attention_tile[static_cast<int>(element_of(in.key_cache.dtype()))];
  parallel_slots(pool_, cu_tasks[sequences], [&](std::int64_t slot, std::int64_t task) {
    AttentionTile tile = make_tile(in, out, plan, task);
    tile.scratch = scratch + slot * scratch_floats;
    kernel(tile);
  });
}

}  // namespace shoal::cpu
