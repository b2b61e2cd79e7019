#include "ops/ranking.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {

void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                 const RankingOutput& out) {
  using op_checks::check_contiguous;
  using op_checks::kAnyExtent;
  op_checks::check_tensor(logits, DType::kFloat32, {kAnyExtent, kAnyExtent});
  const std::int64_t num_rows = logits.dim(0);
  CHECK_GT(columns.ranked, 0);
  CHECK_LE(columns.ranked, columns.summed);
  CHECK_LE(columns.summed, logits.dim(1));
  check_contiguous(tokens, DType::kInt64, {num_rows});
  for (const Tensor* values : {&out.token_logit, &out.largest, &out.log_sum}) {
    check_contiguous(*values, DType::kFloat32, {num_rows});
  }
  check_contiguous(out.rank, DType::kInt32, {num_rows});
  check_contiguous(out.top_ids, DType::kInt32, {num_rows, kAnyExtent});
  check_contiguous(out.top_logits, DType::kFloat32, {num_rows, out.top_ids.dim(1)});
  CHECK_LE(out.top_ids.dim(1), kMostTopLogits);
  if (num_rows == 0) return;
  op_checks::check_values(ctx, tokens, -1, columns.ranked);
  ctx.backend.rank_logits(ctx, logits, columns, tokens, out);
}

}  // namespace shoal::ops
