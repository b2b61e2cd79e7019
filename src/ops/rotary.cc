#include "ops/rotary.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {

using op_checks::kAnyExtent;

void rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style, const Tensor& x) {
  op_checks::check_activations(x, {kAnyExtent, kAnyExtent, kAnyExtent});
  op_checks::check_contiguous(positions, DType::kInt32, {x.dim(0)});
  op_checks::check_contiguous(cos_sin, DType::kFloat32, {kAnyExtent, kAnyExtent});
  CHECK_LE(cos_sin.dim(1), x.dim(2));
  CHECK_EQ(cos_sin.dim(1) % 2, 0);
  if (x.dim(0) == 0) return;
  op_checks::check_values(ctx, positions, 0, cos_sin.dim(0));
  ctx.backend.rotary(ctx, positions, cos_sin, style, x);
}

}  // namespace shoal::ops
