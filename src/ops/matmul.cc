#include "ops/matmul.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {

using op_checks::check_contiguous;

void matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
            const Tensor& out) {
  op_checks::check_matmul(ctx, x, weight, bias, out);
  if (x.dim(0) == 0) return;
  ctx.backend.matmul(ctx, x, weight, bias, mode, out);
}

void matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, Activation kind,
                      const Tensor& out) {
  op_checks::check_product(ctx, x, weight, bias, out);
  if (x.dim(0) == 0) return;
  ctx.backend.matmul_activated(ctx, x, weight, bias, kind, out);
}

void embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode, const Tensor& out) {
  CHECK(table.defined());
  CHECK(ids.dtype() == DType::kInt64 || ids.dtype() == DType::kInt32);
  check_contiguous(ids, ids.dtype(), {op_checks::kAnyExtent});
  op_checks::check_activations(out, {ids.dim(0), table.cols});
  if (out.dtype() != DType::kFloat32) {
    CHECK_EQ(dtype_name(out.dtype()), dtype_name(ctx.backend.activation_dtype(table.dtype)));
  }
  if (ids.dim(0) == 0) return;
  op_checks::check_values(ctx, ids, 0, table.rows);
  ctx.backend.embedding(ctx, ids, table, mode, out);
}

}  // namespace shoal::ops
