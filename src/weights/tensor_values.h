// Reading the elements of mapped tensors, aligned or not, into plain vectors. Used by weights/, lora/ and `shoal
// logits`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace shoal {

// `count` elements of `dtype` (float32, bfloat16 or float16) at `bytes`, widened.
void widen_to_floats(const std::byte* bytes, DType dtype, std::span<float> floats);

// All elements of a contiguous float32, bfloat16 or float16 tensor, row-major.
std::vector<float> float_values(const Tensor& tensor);
// All elements of a contiguous int32 or int64 tensor, row-major.
std::vector<std::int64_t> int_values(const Tensor& tensor);

}  // namespace shoal
