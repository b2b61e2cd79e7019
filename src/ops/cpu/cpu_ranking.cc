#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {
namespace {

struct Ranked {
  float logit;
  std::int32_t id;
};

bool is_better(const Ranked& a, const Ranked& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

// The first `num_top` in order; ids come in ascending order, so what equals the last stays out.
void find_top(const float* logits, std::int64_t vocab, std::int64_t num_top, std::int32_t* ids, float* values) {
  Ranked top[kMostTopLogits];
  std::int64_t count = 0;
  for (std::int64_t id = 0; num_top > 0 && id < vocab; ++id) {
    if (count == num_top && !(logits[id] > top[count - 1].logit)) continue;
    const Ranked ranked{.logit = logits[id], .id = static_cast<std::int32_t>(id)};
    if (count < num_top) ++count;
    std::int64_t at = count - 1;
    for (; at > 0 && is_better(ranked, top[at - 1]); --at) top[at] = top[at - 1];
    top[at] = ranked;
  }
  for (std::int64_t i = 0; i < num_top; ++i) {
    ids[i] = i < count ? top[i].id : -1;
    values[i] = i < count ? top[i].logit : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void CpuBackend::rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                             const RankingOutput& out) const {
  const std::int64_t num_rows = logits.dim(0);
  const Arena::Scope scope(ctx.arena);
  const Tensor weights =
      ctx.arena.take(DType::kFloat32, {std::min<std::int64_t>(pool_.num_threads(), num_rows), columns.summed});
  parallel_slots(pool_, num_rows, [&](std::int64_t slot, std::int64_t row) {
    const float* values = logits.row<float>(row);
    const RowScan scan = kernels_.scan_row(values, columns.summed);
    kernels_.softmax_weights(values, scan.largest, 1.0F, columns.summed, weights.row<float>(slot));
    const double sum = kernels_.sum(weights.row<float>(slot), columns.summed);
    out.largest.data<float>()[row] = scan.largest;
    out.log_sum.data<float>()[row] =
        scan.unusable ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(std::log(sum));
    const std::int64_t token = tokens.data<std::int64_t>()[row];
    const float logit = token < 0 ? std::numeric_limits<float>::quiet_NaN() : values[token];
    std::int32_t larger = 0;
    for (std::int64_t id = 0; id < columns.ranked; ++id) larger += values[id] > logit ? 1 : 0;
    out.token_logit.data<float>()[row] = logit;
    out.rank.data<std::int32_t>()[row] = token < 0 ? 0 : 1 + larger;
    find_top(values, columns.ranked, out.top_ids.dim(1), out.top_ids.row<std::int32_t>(row),
             out.top_logits.row<float>(row));
  });
}

}  // namespace shoal::cpu
