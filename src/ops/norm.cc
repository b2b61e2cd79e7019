#include "ops/norm.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {

using op_checks::check_activations;
using op_checks::check_contiguous;
using op_checks::kAnyExtent;

void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out) {
  check_activations(x, {kAnyExtent, kAnyExtent});
  check_activations(out, {x.dim(0), x.dim(1)});
  if (x.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(x.dtype()), dtype_name(out.dtype()));
  check_contiguous(weight, DType::kFloat32, {x.dim(1)});
  CHECK_GT(x.dim(1), 0);
  if (x.dim(0) == 0) return;
  op_checks::check_in_place_or_apart(x, out);
  ctx.backend.rms_norm(ctx, x, weight, epsilon, out);
}

void layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                const Tensor& out) {
  check_activations(x, {kAnyExtent, kAnyExtent});
  check_activations(out, {x.dim(0), x.dim(1)});
  if (x.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(x.dtype()), dtype_name(out.dtype()));
  check_contiguous(weight, DType::kFloat32, {x.dim(1)});
  if (bias.defined()) check_contiguous(bias, DType::kFloat32, {x.dim(1)});
  CHECK_GT(x.dim(1), 0);
  if (x.dim(0) == 0) return;
  op_checks::check_in_place_or_apart(x, out);
  ctx.backend.layer_norm(ctx, x, weight, bias, epsilon, out);
}

void head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) {
  check_activations(x, {kAnyExtent, kAnyExtent, kAnyExtent});
  check_contiguous(weight, DType::kFloat32, {x.dim(1), x.dim(2)});
  CHECK_GT(x.row_elements(), 0);
  if (x.dim(0) == 0) return;
  ctx.backend.head_layer_norm(ctx, weight, epsilon, x);
}

}  // namespace shoal::ops
