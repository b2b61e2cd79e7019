#include "ops/cuda/cuda_test_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/backends.h"

namespace shoal {
namespace {

// Made once for the whole program: a CUDA context takes longer than most tests.
struct Machine {
  std::unique_ptr<Backend> cuda = make_cuda_backend();
  Arena cuda_arena{cuda->allocator()};
  Context cuda_ctx{.backend = *cuda, .arena = cuda_arena, .stream = cuda->main_stream()};
  std::unique_ptr<Backend> reference = make_reference_backend();
  Arena reference_arena{reference->allocator()};
  Context reference_ctx{.backend = *reference, .arena = reference_arena, .stream = {}};
};

Machine& machine() {
  static Machine instance;
  return instance;
}

std::vector<std::int64_t> shape_of(const Tensor& x) { return {x.shape().begin(), x.shape().end()}; }

std::byte* row_bytes(const Tensor& x, std::int64_t row) {
  return static_cast<std::byte*>(x.raw()) + row * x.row_stride() * dtype_bytes(x.dtype());
}

// The largest share of a value that rounding to this dtype takes: half of the last place.
double rounding(DType dtype) {
  if (dtype == DType::kFloat32) return 0x1p-24;
  return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

// Half of the last place of the smallest numbers, of which float16 has some in reach.
double smallest_rounding(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-25 : 0.0; }

// allowed(want) >= |got - want| everywhere; no NaN passes.
template <typename Allowed>
void expect_each(const HostTensor& got, const HostTensor& want, const Allowed& allowed, const std::string& where) {
  ASSERT_EQ(describe_shape(got.view().shape()), describe_shape(want.view().shape())) << where;
  std::int64_t failures = 0;
  std::string worst;
  double worst_excess = -1.0;
  for (std::int64_t row = 0; row < want.view().dim(0); ++row) {
    for (std::int64_t i = 0; i < want.view().row_elements(); ++i) {
      const double expected = double{want.at(row, i)};
      const double error = std::abs(double{got.at(row, i)} - expected);
      if (error <= allowed(expected)) continue;
      ++failures;
      const double excess = std::isnan(error) ? HUGE_VAL : error - allowed(expected);
      if (excess <= worst_excess) continue;
      worst_excess = excess;
      worst = fmt::format("worst at [{}, {}]: {} instead of {}, {} allowed", row, i, got.at(row, i), expected,
                          allowed(expected));
    }
  }
  EXPECT_EQ(failures, 0) << where << ": of " << want.view().num_elements() << " values " << failures << " are off, "
                         << worst;
}

}  // namespace

DeviceTensor::DeviceTensor(const Backend& backend, DType dtype, const std::vector<std::int64_t>& shape, Guards guards)
    : backend_(&backend), guards_(guards) {
  const std::int64_t row_elements = Tensor(nullptr, dtype, shape).row_elements();
  const std::int64_t width = guards.before + row_elements + guards.after;
  buffer_ = Buffer(backend.allocator(), std::max<std::int64_t>(1, shape[0] * width * dtype_bytes(dtype)));
  whole_ = buffer_.view(dtype, {shape[0], width});
  const Tensor rows = whole_.columns(guards.before, row_elements);
  if (shape.size() == 1) {
    CHECK_EQ(width, row_elements);
    view_ = rows.reshape({shape[0]});
  } else if (shape.size() == 2) {
    view_ = rows;
  } else if (shape.size() == 3) {
    view_ = rows.with_row_shape({shape[1], shape[2]});
  } else {
    view_ = rows.with_row_shape({shape[1], shape[2], shape[3]});
  }
  put(nullptr);
}

DeviceTensor::DeviceTensor(const Backend& backend, const HostTensor& values, Guards guards)
    : DeviceTensor(backend, values.view().dtype(), shape_of(values), guards) {
  put(&values);
}

void DeviceTensor::put(const HostTensor* values) {
  const HostTensor image(whole_.dtype(), shape_of(whole_));  // starts as 0xff bytes
  const Tensor inner = image.view().columns(guards_.before, view_.row_elements());
  const auto num_bytes = static_cast<std::size_t>(view_.row_elements() * dtype_bytes(view_.dtype()));
  for (std::int64_t row = 0; values != nullptr && row < view_.dim(0); ++row) {
    std::memcpy(row_bytes(inner, row), row_bytes(values->view(), row), num_bytes);
  }
  backend_->copy_to_device(image, whole_);
}

HostTensor DeviceTensor::download() const {
  backend_->synchronize(backend_->main_stream());
  const HostTensor image(whole_.dtype(), shape_of(whole_));
  backend_->copy_to_host(whole_, image);
  HostTensor values(view_.dtype(), shape_of(view_));
  const Tensor inner = image.view().columns(guards_.before, view_.row_elements());
  const auto num_bytes = static_cast<std::size_t>(view_.row_elements() * dtype_bytes(view_.dtype()));
  for (std::int64_t row = 0; row < view_.dim(0); ++row) {
    std::memcpy(row_bytes(values, row), row_bytes(inner, row), num_bytes);
    std::memset(row_bytes(inner, row), 0xff, num_bytes);
  }
  const auto* begin = static_cast<const std::uint8_t*>(image.view().raw());
  EXPECT_TRUE(std::all_of(begin, begin + image.view().num_bytes(), [](std::uint8_t byte) { return byte == 0xff; }))
      << "wrote beside the rows of " << view_.describe();
  return values;
}

Twin::Twin(const Backend& backend, const HostTensor& values, Guards guards)
    : device(backend, values, guards),
      reference(is_float(values.view().dtype()) ? as_float32(values) : values.clone()) {}

void CudaTest::SetUp() {
  if (!cuda_is_present()) GTEST_SKIP() << "skipped: no GPU";
}

Context& CudaTest::ctx(Side side) { return side == Side::kDevice ? machine().cuda_ctx : machine().reference_ctx; }

HostTensor host_bytes(DType dtype, const void* values, std::int64_t num_bytes) {
  HostTensor result(dtype, {num_bytes / dtype_bytes(dtype)});
  if (num_bytes > 0) std::memcpy(result.view().raw(), values, static_cast<std::size_t>(num_bytes));
  return result;
}

HostTensor as_float32(const HostTensor& values) {
  HostTensor result(DType::kFloat32, shape_of(values));
  for (std::int64_t row = 0; row < values.view().dim(0); ++row) {
    for (std::int64_t i = 0; i < values.view().row_elements(); ++i) result.set(row, i, values.at(row, i));
  }
  return result;
}

HostTensor rows_of(const HostTensor& values, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> shape = shape_of(values);
  shape[0] = count;
  HostTensor result(DType::kFloat32, shape);
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t i = 0; i < values.view().row_elements(); ++i) result.set(row, i, values.at(begin + row, i));
  }
  return result;
}

void expect_within(const HostTensor& got, const HostTensor& want, const Bound& bound, const std::string& where) {
  const DType dtype = got.view().dtype();
  const double of_sums = tolerance(bound.family) * bound.magnitude + smallest_rounding(dtype);
  expect_each(
      got, want, [&](double value) { return of_sums + rounding(dtype) * (std::abs(value) + bound.rounded); }, where);
}

void expect_within(const Twin& out, const Bound& bound, const std::string& where) {
  expect_within(out.device.download(), out.reference, bound, where);
}

void expect_rounded(const HostTensor& got, const HostTensor& want, const std::string& where) {
  HostTensor rounded(got.view().dtype(), shape_of(want));
  for (std::int64_t row = 0; row < want.view().dim(0); ++row) {
    for (std::int64_t i = 0; i < want.view().row_elements(); ++i) rounded.set(row, i, want.at(row, i));
  }
  expect_each(got, rounded, [](double) { return 0.0; }, where);
}

void expect_rounded(const Twin& out, const std::string& where) {
  expect_rounded(out.device.download(), out.reference, where);
}

void expect_equal_bits(const HostTensor& got, const HostTensor& want, const std::string& where) {
  ASSERT_EQ(got.view().describe(), want.view().describe()) << where;
  const auto* got_bytes = static_cast<const std::byte*>(got.view().raw());
  const auto* want_bytes = static_cast<const std::byte*>(want.view().raw());
  const std::int64_t num_bytes = want.view().num_bytes();
  const std::int64_t at = std::mismatch(want_bytes, want_bytes + num_bytes, got_bytes).first - want_bytes;
  EXPECT_EQ(at, num_bytes) << where << ": " << want.view().describe() << " differs from byte " << at << " on";
}

}  // namespace shoal
