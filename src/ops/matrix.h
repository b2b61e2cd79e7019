// Matrix: a weight in the backend's own layout (packed, quantized, on a device). Made by weights, read by ops.
#pragma once

#include <cstdint>

#include "core/buffer.h"

namespace shoal {

// How the numbers of a Matrix are stored. Plain: one float value an element in the backend's layout.
// A quantized format is one more entry here, one more case in each backend's matmul, and nothing in a model.
enum class WeightFormat : std::uint8_t { kPlain };

// [rows, cols] = [out_features, in_features]; y = x W^T. Move-only, since it owns the memory.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType dtype = DType::kFloat32;
  WeightFormat format = WeightFormat::kPlain;
  Buffer storage;

  bool defined() const { return rows > 0; }
};

}  // namespace shoal
