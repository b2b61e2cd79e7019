#include "ops/reference/float_access.h"

#include "core/check.h"

namespace shoal {

float read_float(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  if (dtype == DType::kBFloat16) return to_float(static_cast<const BFloat16*>(data)[index]);
  CHECK(dtype == DType::kFloat16);
  return to_float(static_cast<const Float16*>(data)[index]);
}

void write_float(void* data, DType dtype, std::int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else if (dtype == DType::kBFloat16) {
    static_cast<BFloat16*>(data)[index] = to_bfloat16(value);
  } else {
    CHECK(dtype == DType::kFloat16);
    static_cast<Float16*>(data)[index] = to_float16(value);
  }
}

}  // namespace shoal
