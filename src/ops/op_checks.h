// The checks that several ops share: shapes, dtypes, overlap and index ranges. Used by the .cc files of ops/ alone.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"
#include "ops/backend.h"

namespace shoal::op_checks {

inline constexpr std::int64_t kAnyExtent = -1;

// `x` has this dtype and shape; kAnyExtent leaves a dimension free.
void check_tensor(const Tensor& x, DType dtype, std::initializer_list<std::int64_t> shape);
// The same, and rows follow each other without a gap.
void check_contiguous(const Tensor& x, DType dtype, std::initializer_list<std::int64_t> shape);
// A float tensor of this shape whose rows do not run into each other.
void check_activations(const Tensor& x, std::initializer_list<std::int64_t> shape);

// Whether a byte belongs to both. Column slices of one buffer do not overlap although their ranges interleave.
bool overlap(const Tensor& a, const Tensor& b);
// `out` is `x` itself or apart from it.
void check_in_place_or_apart(const Tensor& x, const Tensor& out);

// What every product with a weight asks for; a matmul also has the dtype of `out` follow the weight.
void check_product(const Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, const Tensor& out);
void check_matmul(const Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, const Tensor& out);

// Every value of a contiguous i32 or i64 tensor lies in [begin, end). Only where the data is host memory.
void check_values(const Context& ctx, const Tensor& values, std::int64_t begin, std::int64_t end);
// The operands of ops::rotary.
void check_rotary(const Context& ctx, const Tensor& positions, const Tensor& cos_sin, const Tensor& x);

}  // namespace shoal::op_checks
