#include "weights/tensor_values.h"

#include <cstring>

namespace shoal {
namespace {

template <typename T>
T load(const std::byte* bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void widen(const std::byte* bytes, std::span<float> floats) {
  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = to_float(load<T>(bytes, i));
}

}  // namespace

void widen_to_floats(const std::byte* bytes, DType dtype, std::span<float> floats) {
  CHECK(is_float(dtype));
  if (dtype == DType::kFloat32) widen<float>(bytes, floats);
  if (dtype == DType::kBFloat16) widen<BFloat16>(bytes, floats);
  if (dtype == DType::kFloat16) widen<Float16>(bytes, floats);
}

std::vector<float> float_values(const Tensor& tensor) {
  CHECK(tensor.contiguous());
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_to_floats(static_cast<const std::byte*>(tensor.raw()), tensor.dtype(), values);
  return values;
}

std::vector<std::int64_t> int_values(const Tensor& tensor) {
  CHECK(tensor.contiguous());
  CHECK(tensor.dtype() == DType::kInt32 || tensor.dtype() == DType::kInt64);
  const auto* bytes = static_cast<const std::byte*>(tensor.raw());
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype() == DType::kInt64 ? load<std::int64_t>(bytes, i) : load<std::int32_t>(bytes, i);
  }
  return values;
}

}  // namespace shoal
