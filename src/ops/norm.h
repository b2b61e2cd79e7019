// Normalisations. Sums run in float over the row in one fixed order. Used by Norm and Attention in layers/.
#pragma once

#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal::ops {

// out = x / sqrt(mean(x^2) + epsilon) * weight: x [tokens, hidden] activations or float32, out [tokens, hidden]
// activations, weight [hidden] float32. In place allowed.
void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out);

// out = (x - mean) / sqrt(var + epsilon) * weight + bias: bias [hidden] float32 or undefined. In place allowed.
void layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                const Tensor& out);

// LayerNorm of each head by its own weight row, in place: x [tokens, heads, head_dim] activations (rows may be
// strided), weight [heads, head_dim] float32. Cohere's use_qk_norm.
void head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x);

}  // namespace shoal::ops
