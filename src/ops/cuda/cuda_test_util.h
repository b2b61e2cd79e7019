// What the CUDA op tests share: a fixture that skips without a GPU, tensors on the GPU beside their float32 copies for
// the reference, and the comparison of both. Used by the cuda_*_test.cc files alone.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/op_test_util.h"
#include "ops/tolerance.h"

namespace shoal {

inline constexpr std::array kFloatDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Elements beside each row that are no part of it: 0xff bytes (NaN in every float kind), checked for stray writes.
struct Guards {
  std::int64_t before = 0;
  std::int64_t after = 0;
};
inline constexpr Guards kContiguous{};
inline constexpr Guards kOddGuards{.before = 3, .after = 2};       // rows start off every alignment
inline constexpr Guards kAlignedGuards{.before = 8, .after = 16};  // as a column slice of a fused projection

// A tensor on the GPU and its memory.
class DeviceTensor {
 public:
  // Every byte 0xff.
  DeviceTensor(const Backend& backend, DType dtype, const std::vector<std::int64_t>& shape,
               Guards guards = kContiguous);
  DeviceTensor(const Backend& backend, const HostTensor& values, Guards guards = kContiguous);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT(google-explicit-constructor): stands in for its view
  // The values, contiguous, once the main stream has passed. A test fails if the guards have changed.
  HostTensor download() const;

 private:
  void put(const HostTensor* values);

  const Backend* backend_;
  Guards guards_;
  Buffer buffer_;
  Tensor whole_;  // [rows, row elements with guards]
  Tensor view_;
};

enum class Side : std::uint8_t { kDevice, kReference };

// The same values for both backends: in their dtype on the GPU, as float32 (integers as they are) for the reference.
struct Twin {
  Twin(const Backend& backend, const HostTensor& values, Guards guards = kContiguous);
  const Tensor& on(Side side) const { return side == Side::kDevice ? device.view() : reference.view(); }

  DeviceTensor device;
  HostTensor reference;
};

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;

  Context& ctx() { return ctx(Side::kDevice); }
  Context& reference_ctx() { return ctx(Side::kReference); }
  Context& ctx(Side side);
  const Backend& backend() { return ctx().backend; }
  Twin twin(const HostTensor& values, Guards guards = kContiguous) { return {backend(), values, guards}; }
  // Uniform in [-1, 1), exact in `dtype`.
  Twin random_twin(RandomFill& random, DType dtype, const std::vector<std::int64_t>& shape,
                   Guards guards = kContiguous) {
    return twin(random.tensor(dtype, shape), guards);
  }
};

HostTensor host_bytes(DType dtype, const void* values, std::int64_t num_bytes);
// The values as a host tensor [count]; of plain structures with DType::kUInt8, their bytes.
template <typename T>
HostTensor host_values(const std::vector<T>& values, DType dtype) {
  return host_bytes(dtype, values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
}
HostTensor as_float32(const HostTensor& values);
// A copy of rows [begin, begin + count) of a float32 tensor.
HostTensor rows_of(const HostTensor& values, std::int64_t begin, std::int64_t count);

// How far a result may be from the reference: tolerance(family) * magnitude for its float sums, and one rounding to its
// dtype (2^-8 in bfloat16, 2^-11 in float16) of itself and of `rounded`.
struct Bound {
  OpFamily family;
  double magnitude = 1.0;  // of the terms that a result is summed from
  double rounded = 0.0;    // of what else is rounded to the result's dtype on the way
};
void expect_within(const HostTensor& got, const HostTensor& want, const Bound& bound, const std::string& where);
void expect_within(const Twin& out, const Bound& bound, const std::string& where);
// Every value is the reference's, rounded once.
void expect_rounded(const HostTensor& got, const HostTensor& want, const std::string& where);
void expect_rounded(const Twin& out, const std::string& where);
// Bit for bit, any dtype, both contiguous.
void expect_equal_bits(const HostTensor& got, const HostTensor& want, const std::string& where);

}  // namespace shoal
