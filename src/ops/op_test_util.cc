#include "ops/op_test_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/reference/float_access.h"

namespace shoal {
namespace {

constexpr std::int64_t kGuardBefore = 3;  // odd, so that no row stays aligned
constexpr std::int64_t kGuardAfter = 2;

}  // namespace

TestBackend::TestBackend(CpuIsa isa, int num_threads)
    : pool_(num_threads),
      backend_(make_cpu_backend(isa, pool_)),
      arena_(backend_->allocator()),
      ctx_{.backend = *backend_, .arena = arena_, .stream = {}} {}

Matrix TestBackend::matrix(DType dtype, const Tensor& host) const {
  Matrix matrix = backend_->allocate_matrix(dtype, host.dim(0), host.dim(1));
  backend_->fill_rows(matrix, 0, host);
  return matrix;
}

void BackendTest::SetUp() {
  const std::vector<CpuIsa> available = available_isas();
  if (std::find(available.begin(), available.end(), GetParam()) == available.end()) {
    GTEST_SKIP() << "skipped: no " << isa_name(GetParam());
  }
  tested_.emplace(GetParam());
}

std::string isa_test_name(const ::testing::TestParamInfo<CpuIsa>& info) { return std::string(isa_name(info.param)); }

const std::vector<CpuIsa>& all_isas() {
  static const std::vector<CpuIsa> isas{CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};
  return isas;
}

std::vector<CpuIsa> kernel_isas() {
  std::vector<CpuIsa> isas = all_isas();
  std::erase(isas, CpuIsa::kReference);
  return isas;
}

HostTensor::HostTensor(DType dtype, const std::vector<std::int64_t>& shape, Padding padding) : padding_(padding) {
  std::int64_t row_elements = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) row_elements *= shape[i];
  const bool padded = padding == Padding::kRows;
  const std::int64_t width = row_elements + (padded ? kGuardBefore + kGuardAfter : 0);
  buffer_ = Buffer(host_allocator(), std::max<std::int64_t>(1, shape[0] * width * dtype_bytes(dtype)));
  std::memset(buffer_.raw(), 0xff, static_cast<std::size_t>(buffer_.num_bytes()));  // NaN in every float kind
  whole_ = buffer_.view(dtype, {shape[0], width});
  const Tensor rows = whole_.columns(padded ? kGuardBefore : 0, row_elements);
  switch (shape.size()) {
    case 1:
      view_ = rows.reshape({shape[0]});
      break;
    case 2:
      view_ = rows;
      break;
    case 3:
      view_ = rows.with_row_shape({shape[1], shape[2]});
      break;
    default:
      view_ = rows.with_row_shape({shape[1], shape[2], shape[3]});
  }
}

HostTensor HostTensor::clone() const {
  HostTensor result(view_.dtype(), {view_.shape().begin(), view_.shape().end()}, padding_);
  std::memcpy(result.buffer_.raw(), buffer_.raw(), static_cast<std::size_t>(buffer_.num_bytes()));
  return result;
}

float HostTensor::at(std::int64_t row, std::int64_t column) const {
  return read_float(view_.raw(), view_.dtype(), row * view_.row_stride() + column);
}

void HostTensor::set(std::int64_t row, std::int64_t column, float value) {
  write_float(view_.raw(), view_.dtype(), row * view_.row_stride() + column, value);
}

bool HostTensor::guards_intact() const {
  const auto* bytes = static_cast<const std::uint8_t*>(whole_.raw());
  const std::int64_t element_bytes = dtype_bytes(whole_.dtype());
  const std::int64_t row_bytes = whole_.dim(1) * element_bytes;
  const std::int64_t begin = (static_cast<const std::uint8_t*>(view_.raw()) - bytes);
  const std::int64_t end = begin + view_.row_elements() * element_bytes;
  for (std::int64_t row = 0; row < whole_.dim(0); ++row) {
    for (std::int64_t i = 0; i < row_bytes; ++i) {
      if ((i < begin || i >= end) && bytes[row * row_bytes + i] != 0xff) return false;
    }
  }
  return true;
}

float RandomFill::uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(engine_() >> 40) * 0x1p-24F;
}

std::int64_t RandomFill::integer(std::int64_t begin, std::int64_t end) {
  return begin + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end - begin));
}

void RandomFill::fill(HostTensor& tensor, float low, float high) {
  for (std::int64_t row = 0; row < tensor.view().dim(0); ++row) {
    for (std::int64_t i = 0; i < tensor.view().row_elements(); ++i) tensor.set(row, i, uniform(low, high));
  }
}

HostTensor RandomFill::tensor(DType dtype, const std::vector<std::int64_t>& shape, Padding padding) {
  HostTensor result(dtype, shape, padding);
  fill(result);
  return result;
}

HostTensor values_f32(const std::vector<std::int64_t>& shape, std::initializer_list<float> values) {
  HostTensor result(DType::kFloat32, shape);
  CHECK_EQ(result.view().num_elements(), static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), result.view().data<float>());
  return result;
}

HostTensor values_i32(std::initializer_list<std::int32_t> values) {
  HostTensor result(DType::kInt32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), result.view().data<std::int32_t>());
  return result;
}

HostTensor values_i64(std::initializer_list<std::int64_t> values) {
  HostTensor result(DType::kInt64, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), result.view().data<std::int64_t>());
  return result;
}

void expect_close(const HostTensor& got, const HostTensor& want, double tolerance, double magnitude,
                  const std::string& where) {
  ASSERT_EQ(describe_shape(got.view().shape()), describe_shape(want.view().shape())) << where;
  EXPECT_TRUE(got.guards_intact()) << "wrote between rows: " << where;
  double worst = 0.0;
  std::int64_t worst_row = 0;
  std::int64_t worst_column = 0;
  for (std::int64_t row = 0; row < want.view().dim(0); ++row) {
    for (std::int64_t i = 0; i < want.view().row_elements(); ++i) {
      double error = std::abs(double{got.at(row, i)} - double{want.at(row, i)}) / magnitude;
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
      if (error <= worst) continue;
      worst = error;
      worst_row = row;
      worst_column = i;
    }
  }
  EXPECT_LE(worst, tolerance) << where
                              << fmt::format(" at [{}, {}]: {} instead of {}", worst_row, worst_column,
                                             got.at(worst_row, worst_column), want.at(worst_row, worst_column));
}

void expect_same_bits(const HostTensor& batch, std::int64_t begin, const HostTensor& alone, const std::string& where) {
  const std::int64_t row_elements = alone.view().row_elements();
  ASSERT_EQ(batch.view().row_elements(), row_elements) << where;
  for (std::int64_t row = 0; row < alone.view().dim(0); ++row) {
    const float* want = batch.view().row<float>(begin + row);
    const float* got = alone.view().row<float>(row);
    if (std::memcmp(got, want, static_cast<std::size_t>(row_elements) * sizeof(float)) == 0) continue;
    const auto at = std::mismatch(want, want + row_elements, got).first - want;
    const std::int64_t i = std::min<std::int64_t>(at, row_elements - 1);
    ADD_FAILURE() << where
                  << fmt::format(": row {} differs at {}: {} alone, {} in the batch", begin + row, i, got[i], want[i]);
    return;
  }
}

}  // namespace shoal
