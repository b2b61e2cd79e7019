#include "core/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shoal {

Tensor::Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape)
    : Tensor(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size())) {}

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> shape)
    : data_(data), dims_(static_cast<int>(shape.size())), dtype_(dtype) {
  CHECK_GE(dims_, 1);
  CHECK_LE(dims_, kMaxDims);
  std::copy(shape.begin(), shape.end(), shape_.begin());
  for (const std::int64_t extent : shape) CHECK_GE(extent, 0);
  row_stride_ = row_elements();
}

std::int64_t Tensor::row_elements() const {
  std::int64_t elements = 1;
  for (int i = 1; i < dims_; ++i) elements *= shape_[static_cast<std::size_t>(i)];
  return elements;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  CHECK_GE(begin, 0);
  CHECK_GE(count, 0);
  CHECK_LE(begin + count, dim(0));
  Tensor view = *this;
  view.data_ = static_cast<std::byte*>(data_) + begin * row_stride_ * dtype_bytes(dtype_);
  view.shape_[0] = count;
  return view;
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  CHECK_EQ(dims_, 2);
  CHECK_GE(begin, 0);
  CHECK_GE(count, 0);
  CHECK_LE(begin + count, dim(1));
  Tensor view = *this;
  view.data_ = static_cast<std::byte*>(data_) + begin * dtype_bytes(dtype_);
  view.shape_[1] = count;
  return view;
}

Tensor Tensor::with_row_shape(std::initializer_list<std::int64_t> inner) const {
  CHECK_LT(static_cast<int>(inner.size()), kMaxDims);
  Tensor view = *this;
  view.dims_ = static_cast<int>(inner.size()) + 1;
  std::copy(inner.begin(), inner.end(), view.shape_.begin() + 1);
  CHECK_EQ(view.row_elements(), row_elements());
  return view;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> shape) const {
  CHECK(contiguous());
  const Tensor view(data_, dtype_, shape);
  CHECK_EQ(view.num_elements(), num_elements());
  return view;
}

std::string Tensor::describe() const { return fmt::format("{} {}", dtype_name(dtype_), describe_shape(shape())); }

std::string describe_shape(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace shoal
