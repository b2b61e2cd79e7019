// DummyValues: random weights for benchmarks without a checkpoint. Used by WeightSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace shoal {

// Values depend on the tensor's name, the row and the column alone, so a slice of a matrix equals the same rows of
// the whole. Matrices are uniform with standard deviation 0.02; norm weights lie within 1 +- 0.05; other vectors
// within +- 0.02.
class DummyValues {
 public:
  static constexpr float kMatrixBound = 0.0346410F;  // sqrt(3) * 0.02: uniform within it deviates by 0.02

  explicit DummyValues(DType dtype);

  DType dtype() const { return dtype_; }
  // Writes one row of `cols` elements of dtype() at `row_out`, which is aligned for it.
  void fill_row(std::string_view name, std::int64_t row, std::int64_t cols, std::byte* row_out) const;
  std::vector<float> vector(std::string_view name, std::int64_t count) const;

 private:
  DType dtype_;
  // The possible matrix values in the bits of dtype(); a draw is an index, which is faster than arithmetic.
  std::vector<std::uint16_t> narrow_values_;
  std::vector<std::uint32_t> wide_values_;
};

}  // namespace shoal
