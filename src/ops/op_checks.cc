#include "ops/op_checks.h"

#include <cstddef>

namespace shoal::op_checks {
namespace {

void check_shape(const Tensor& x, std::initializer_list<std::int64_t> shape) {
  CHECK_EQ(x.dims(), static_cast<int>(shape.size()));
  int index = 0;
  for (const std::int64_t extent : shape) {
    if (extent != kAnyExtent) CHECK_EQ(x.dim(index), extent);
    ++index;
  }
}

template <typename T>
void check_range(const Tensor& values, std::int64_t begin, std::int64_t end) {
  for (const T value : values.span<T>()) {
    CHECK_GE(std::int64_t{value}, begin);
    CHECK_LT(std::int64_t{value}, end);
  }
}

}  // namespace

void check_tensor(const Tensor& x, DType dtype, std::initializer_list<std::int64_t> shape) {
  CHECK_EQ(dtype_name(x.dtype()), dtype_name(dtype));
  check_shape(x, shape);
}

void check_contiguous(const Tensor& x, DType dtype, std::initializer_list<std::int64_t> shape) {
  check_tensor(x, dtype, shape);
  CHECK(x.contiguous());
}

void check_activations(const Tensor& x, std::initializer_list<std::int64_t> shape) {
  CHECK(is_float(x.dtype()));
  check_shape(x, shape);
  if (x.dim(0) > 1) CHECK_GE(x.row_stride(), x.row_elements());
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.num_elements() == 0 || b.num_elements() == 0) return false;
  const std::int64_t a_row = a.row_elements() * dtype_bytes(a.dtype());
  const std::int64_t b_row = b.row_elements() * dtype_bytes(b.dtype());
  const std::int64_t a_stride = a.row_stride() * dtype_bytes(a.dtype());
  const std::int64_t b_stride = b.row_stride() * dtype_bytes(b.dtype());
  const auto a_begin = reinterpret_cast<std::intptr_t>(a.raw());
  const auto b_begin = reinterpret_cast<std::intptr_t>(b.raw());
  if (b_begin >= a_begin + (a.dim(0) - 1) * a_stride + a_row) return false;
  if (a_begin >= b_begin + (b.dim(0) - 1) * b_stride + b_row) return false;
  if (a_stride != b_stride) return true;
  // Rows repeat with one period, so it is enough to look at where b's row starts inside a's period.
  const std::int64_t phase = ((b_begin - a_begin) % a_stride + a_stride) % a_stride;
  return phase < a_row || phase + b_row > a_stride;
}

void check_in_place_or_apart(const Tensor& x, const Tensor& out) {
  const bool same = x.raw() == out.raw() && (x.row_stride() == out.row_stride() || x.dim(0) <= 1);
  CHECK(same || !overlap(x, out));
}

void check_product(const Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, const Tensor& out) {
  CHECK(weight.defined());
  check_activations(x, {kAnyExtent, weight.cols});
  check_activations(out, {x.dim(0), weight.rows});
  CHECK_EQ(dtype_name(x.dtype()), dtype_name(ctx.backend.activation_dtype(weight.dtype)));
  if (bias.defined()) check_contiguous(bias, DType::kFloat32, {weight.rows});
  CHECK(!overlap(x, out));
}

void check_matmul(const Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, const Tensor& out) {
  check_product(ctx, x, weight, bias, out);
  if (out.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(out.dtype()), dtype_name(x.dtype()));
}

void check_values(const Context& ctx, const Tensor& values, std::int64_t begin, std::int64_t end) {
  if (ctx.backend.device() != DeviceKind::kCpu) return;
  if (values.dtype() == DType::kInt32) {
    check_range<std::int32_t>(values, begin, end);
  } else {
    check_range<std::int64_t>(values, begin, end);
  }
}

void check_rotary(const Context& ctx, const Tensor& positions, const Tensor& cos_sin, const Tensor& x) {
  check_activations(x, {kAnyExtent, kAnyExtent, kAnyExtent});
  check_contiguous(positions, DType::kInt32, {x.dim(0)});
  check_contiguous(cos_sin, DType::kFloat32, {kAnyExtent, kAnyExtent});
  CHECK_LE(cos_sin.dim(1), x.dim(2));
  CHECK_EQ(cos_sin.dim(1) % 2, 0);
  check_values(ctx, positions, 0, cos_sin.dim(0));
}

}  // namespace shoal::op_checks
