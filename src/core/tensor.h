// Tensor: a small copyable view of memory with shape and dtype; Buffer (buffer.h) is the owner.
// Used by every room; a step's view is never stored in a member.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/check.h"
#include "core/dtype.h"

namespace shoal {

// Row-major, up to four dimensions. Everything inside one row of the first dimension is contiguous;
// rows themselves lie `row_stride` elements apart, so a column slice of a fused projection is a view too.
class Tensor {
 public:
  static constexpr int kMaxDims = 4;

  Tensor() = default;
  // A contiguous view of `data`.
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape);

  bool defined() const { return dims_ > 0; }
  DType dtype() const { return dtype_; }
  int dims() const { return dims_; }
  std::int64_t dim(int index) const {
    CHECK_LT(index, dims_);
    return shape_[static_cast<std::size_t>(index)];
  }
  std::span<const std::int64_t> shape() const { return {shape_.data(), static_cast<std::size_t>(dims_)}; }
  std::int64_t row_stride() const { return row_stride_; }
  // Elements of one row (product of all dimensions but the first).
  std::int64_t row_elements() const;
  std::int64_t num_elements() const { return dims_ == 0 ? 0 : shape_[0] * row_elements(); }
  std::int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype_); }
  bool contiguous() const { return row_stride_ == row_elements() || (dims_ > 0 && shape_[0] <= 1); }

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    CHECK(dtype_of(static_cast<T*>(nullptr)) == dtype_);
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> span() const {
    CHECK(contiguous());
    return {data<T>(), static_cast<std::size_t>(num_elements())};
  }
  template <typename T>
  T* row(std::int64_t index) const {
    return data<T>() + index * row_stride_;
  }

  // Rows [begin, begin + count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // Columns [begin, begin + count) of a two-dimensional tensor; the row stride stays.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  // The same rows seen as [rows, inner...]; the product of `inner` must equal row_elements().
  Tensor with_row_shape(std::initializer_list<std::int64_t> inner) const;
  // A contiguous tensor seen with another shape of as many elements.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const;

  // "float32 [3, 128]", for messages.
  std::string describe() const;

 private:
  static DType dtype_of(const float*) { return DType::kFloat32; }
  static DType dtype_of(const BFloat16*) { return DType::kBFloat16; }
  static DType dtype_of(const Float16*) { return DType::kFloat16; }
  static DType dtype_of(const std::int8_t*) { return DType::kInt8; }
  static DType dtype_of(const std::uint8_t*) { return DType::kUInt8; }
  static DType dtype_of(const std::int32_t*) { return DType::kInt32; }
  static DType dtype_of(const std::int64_t*) { return DType::kInt64; }

  void* data_ = nullptr;
  std::array<std::int64_t, kMaxDims> shape_{};
  std::int64_t row_stride_ = 0;
  int dims_ = 0;
  DType dtype_ = DType::kFloat32;
};

// "[3, 128]", for messages.
std::string describe_shape(std::span<const std::int64_t> shape);

}  // namespace shoal
