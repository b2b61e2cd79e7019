#include "ops/elementwise.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {
namespace {

using op_checks::check_activations;
using op_checks::kAnyExtent;

// x and out are activations of one shape, or x is float32; out is x itself or apart from it.
void check_pointwise(const Tensor& x, const Tensor& out) {
  check_activations(x, {kAnyExtent, kAnyExtent});
  check_activations(out, {x.dim(0), x.dim(1)});
  if (x.dtype() == out.dtype()) {
    op_checks::check_in_place_or_apart(x, out);
  } else {
    CHECK_EQ(dtype_name(x.dtype()), dtype_name(DType::kFloat32));
    CHECK(!op_checks::overlap(x, out));
  }
}

}  // namespace

void activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) {
  check_pointwise(x, out);
  if (x.num_elements() == 0) return;
  ctx.backend.activation(ctx, kind, x, out);
}

void gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) {
  check_activations(out, {kAnyExtent, kAnyExtent});
  check_activations(gate_up, {out.dim(0), 2 * out.dim(1)});
  if (gate_up.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(gate_up.dtype()), dtype_name(out.dtype()));
  CHECK(!op_checks::overlap(gate_up, out));
  if (out.num_elements() == 0) return;
  ctx.backend.gated_activation(ctx, kind, gate_up, out);
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  check_pointwise(a, out);
  check_pointwise(b, out);
  CHECK_EQ(dtype_name(b.dtype()), dtype_name(out.dtype()));
  if (out.num_elements() == 0) return;
  ctx.backend.add(ctx, a, b, out);
}

void mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) {
  check_pointwise(a, out);
  check_pointwise(b, out);
  CHECK_EQ(dtype_name(b.dtype()), dtype_name(out.dtype()));
  if (out.num_elements() == 0) return;
  ctx.backend.mix(ctx, a, b, t, out);
}

void scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) {
  check_pointwise(x, out);
  if (x.num_elements() == 0) return;
  ctx.backend.scale(ctx, x, factor, out);
}

void gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) {
  check_activations(x, {kAnyExtent, kAnyExtent});
  op_checks::check_contiguous(indices, DType::kInt64, {kAnyExtent});
  check_activations(out, {indices.dim(0), x.dim(1)});
  CHECK_EQ(dtype_name(x.dtype()), dtype_name(out.dtype()));
  CHECK(!op_checks::overlap(x, out));
  if (out.num_elements() == 0) return;
  op_checks::check_values(ctx, indices, 0, x.dim(0));
  ctx.backend.gather_rows(ctx, x, indices, out);
}

}  // namespace shoal::ops
