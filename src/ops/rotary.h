// Rotary position embedding. Used by Attention in layers/.
#pragma once

#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal::ops {

// Rotates each head of x in place: x [tokens, heads, head_dim] activations (rows may be strided),
// positions i32 [tokens], cos_sin float32 [positions, rotary_dim]: first rotary_dim/2 cosines, then as many sines.
// rotary_dim <= head_dim; the rest of a head stays as it is. (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
void rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style, const Tensor& x);

}  // namespace shoal::ops
