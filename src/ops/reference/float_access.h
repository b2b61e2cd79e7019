// Single elements of float memory of any kind, read and written as float. Used by the reference ops alone.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace shoal {

// Element `index` of an array of `dtype`: float32, bfloat16 or float16.
float read_float(const void* data, DType dtype, std::int64_t index);
// Rounded to nearest even.
void write_float(void* data, DType dtype, std::int64_t index, float value);

}  // namespace shoal
