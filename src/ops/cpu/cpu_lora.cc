#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kShrinkRanks = 4;    // ranks of a work item: the kernel takes so many at a time
constexpr std::int64_t kItemTokens = 32;    // tokens of a work item
constexpr std::int64_t kItemColumns = 512;  // columns of an expand item

// One adapter's delta on one part.
struct Delta {
  const LoraGroup& group;
  const LoraPart& part;
  const LoraPair& pair;
  std::int64_t slot;  // which [tokens, max_rank] slice of the shrunk values
};

Delta delta_at(const LoraBatch& batch, std::span<const LoraPart> parts, std::int64_t index) {
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  const LoraGroup& group = batch.groups[static_cast<std::size_t>(index / num_parts)];
  const LoraPart& part = parts[static_cast<std::size_t>(index % num_parts)];
  return {group, part, group.pairs[static_cast<std::size_t>(part.target_id)], index % num_parts};
}

std::int64_t items_of(std::int64_t count, std::int64_t each) { return (count + each - 1) / each; }

// Every delta is cut into `cuts` tasks; body(delta, begin, end) gets each its share of num_items(delta) items.
template <typename NumItems, typename Body>
void for_items(ThreadPool& pool, const LoraBatch& batch, std::span<const LoraPart> parts, const NumItems& num_items,
               const Body& body) {
  const std::int64_t deltas = std::ssize(batch.groups) * std::ssize(parts);
  std::int64_t most_items = 0;
  for (std::int64_t i = 0; i < deltas; ++i) {
    const Delta delta = delta_at(batch, parts, i);
    if (delta.pair.a.defined()) most_items = std::max(most_items, num_items(delta));
  }
  const std::int64_t cuts = std::min<std::int64_t>(most_items, std::int64_t{4} * pool.num_threads());
  if (cuts == 0) return;
  pool.parallel_for(deltas * cuts, [&](std::int64_t task) {
    const Delta delta = delta_at(batch, parts, task / cuts);
    if (!delta.pair.a.defined()) return;
    const std::int64_t items = num_items(delta);
    for (std::int64_t item = task % cuts * items / cuts; item < (task % cuts + 1) * items / cuts; ++item) {
      body(delta, item);
    }
  });
}

}  // namespace

void CpuBackend::lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                          const Tensor& out) const {
  const Arena::Scope scope(ctx.arena);
  const auto num_tokens = static_cast<std::int64_t>(batch.host_token_rows.size());
  const std::int64_t max_rank = batch.max_rank;
  float* shrunk = ctx.arena.take(DType::kFloat32, {std::ssize(parts), num_tokens, max_rank}).data<float>();
  const auto shrunk_of = [&](const Delta& delta, std::int64_t token) {
    return shrunk + (delta.slot * num_tokens + delta.group.token_begin + token) * max_rank;
  };
  const auto rank_items = [](const Delta& delta) { return items_of(delta.pair.a.dim(0), kShrinkRanks); };
  const auto token_items = [](const Delta& delta) { return items_of(delta.group.token_count, kItemTokens); };
  const auto column_items = [](const Delta& delta) { return items_of(delta.part.column_count, kItemColumns); };

  for_items(
      pool_, batch, parts, [&](const Delta& delta) { return rank_items(delta) * token_items(delta); },
      [&](const Delta& delta, std::int64_t item) {
        const std::int64_t token = item / rank_items(delta) * kItemTokens;
        LoraShrink task;
        task.x = x.data<float>();
        task.x_stride = x.row_stride();
        task.token_rows = batch.host_token_rows.data() + delta.group.token_begin + token;
        task.tokens = std::min(kItemTokens, delta.group.token_count - token);
        task.a = delta.pair.a.raw();
        task.a_stride = delta.pair.a.row_stride();
        task.columns = x.dim(1);
        task.rank_begin = item % rank_items(delta) * kShrinkRanks;
        task.rank_end = std::min(task.rank_begin + kShrinkRanks, delta.pair.a.dim(0));
        task.scale = delta.pair.scale;
        task.shrunk = shrunk_of(delta, token);
        task.shrunk_stride = max_rank;
        kernels_.lora_shrink[static_cast<int>(element_of(delta.pair.a.dtype()))](task);
      });
  for_items(
      pool_, batch, parts, [&](const Delta& delta) { return column_items(delta) * token_items(delta); },
      [&](const Delta& delta, std::int64_t item) {
        const std::int64_t token = item / column_items(delta) * kItemTokens;
        const std::int64_t column = item % column_items(delta) * kItemColumns;
        LoraExpand task;
        task.shrunk = shrunk_of(delta, token);
        task.shrunk_stride = max_rank;
        task.token_rows = batch.host_token_rows.data() + delta.group.token_begin + token;
        task.tokens = std::min(kItemTokens, delta.group.token_count - token);
        task.b = static_cast<const char*>(delta.pair.b.raw()) + column * dtype_bytes(delta.pair.b.dtype());
        task.b_stride = delta.pair.b.row_stride();
        task.rank = delta.pair.b.dim(0);
        task.columns = std::min(kItemColumns, delta.part.column_count - column);
        task.out = out.data<float>() + delta.part.column_begin + column;
        task.out_stride = out.row_stride();
        kernels_.lora_expand[static_cast<int>(element_of(delta.pair.b.dtype()))](task);
      });
}

}  // namespace shoal::cpu
