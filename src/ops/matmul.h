// Products with a weight matrix and look-ups in one. Used by Linear, Embedding and LmHead in layers/.
#pragma once

#include "core/tensor.h"
#include "ops/matrix.h"
#include "ops/modes.h"

namespace shoal {

struct Context;

namespace ops {

// out = x W^T + bias, or out += ... : x [tokens, cols] activations, weight [rows, cols], bias [rows] float32 or
// undefined, out [tokens, rows] activations, or float32 for logits; rows of x and out may be strided; out must not
// overlap x. Each output accumulates over K in one order fixed by the weight's shape alone, in float.
void matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
            const Tensor& out);

// out = f(x W^T + bias): as matmul, rounded once, after the activation; out [tokens, rows] in any float dtype.
void matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, Activation kind,
                      const Tensor& out);

// out[t] = table[ids[t]], or out[t] += ... : ids i64 or i32 [tokens], each in [0, table.rows) (checked on the host),
// out [tokens, cols] activations or float32.
void embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode, const Tensor& out);

}  // namespace ops
}  // namespace shoal
