#include "ops/rotary.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {

void rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style, const Tensor& x) {
  op_checks::check_rotary(ctx, positions, cos_sin, x);
  if (x.dim(0) == 0) return;
  ctx.backend.rotary(ctx, positions, cos_sin, style, x);
}

}  // namespace shoal::ops
