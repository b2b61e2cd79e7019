// Activations, sums, mixes and row gathers. Used by Mlp, LmHead and the models' residual wiring.
#pragma once

#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal::ops {

// out = f(x): [tokens, width] activations, x or float32. In place allowed.
void activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out);

// out = f(gate) * up: gate_up [tokens, 2 * width] activations or float32, the gate first, out [tokens, width]
// activations, no overlap.
void gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out);

// out = a + b: [tokens, hidden] activations. In place allowed.
void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out);

// out = a * t + b * (1 - t): [tokens, hidden] activations. In place allowed. Solar's BSKCN.
void mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out);

// out = x * factor: x [rows, width] activations or float32, out [rows, width] activations. In place allowed.
void scale(Context& ctx, const Tensor& x, float factor, const Tensor& out);

// out[i] = x[indices[i]]: x [tokens, hidden], indices i64 [selected], out [selected, hidden] activations, no overlap.
void gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out);

}  // namespace shoal::ops
