#include <cstring>

#include "ops/backends.h"
#include "ops/reference/float_access.h"
#include "ops/reference/reference_backend.h"

namespace shoal {

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

Matrix ReferenceBackend::allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const {
  CHECK(is_float(dtype));
  CHECK_GT(rows, 0);
  CHECK_GT(cols, 0);
  Matrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.dtype = dtype;
  matrix.storage = Buffer(allocator(), rows * cols * dtype_bytes(dtype));
  return matrix;
}

void ReferenceBackend::fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const {
  CHECK_EQ(host_rows.dims(), 2);
  CHECK_EQ(host_rows.dim(1), matrix.cols);
  CHECK_GE(row_begin, 0);
  CHECK_LE(row_begin + host_rows.dim(0), matrix.rows);
  for (std::int64_t row = 0; row < host_rows.dim(0); ++row) {
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      const float value = read_float(host_rows.raw(), host_rows.dtype(), row * host_rows.row_stride() + col);
      write_float(matrix.storage.raw(), matrix.dtype, (row_begin + row) * matrix.cols + col, value);
    }
  }
}

void ReferenceBackend::copy_to_device(const Tensor& host, const Tensor& device) const {
  CHECK_EQ(host.describe(), device.describe());
  CHECK(host.contiguous());
  CHECK(device.contiguous());
  if (host.num_elements() == 0) return;
  std::memcpy(device.raw(), host.raw(), static_cast<std::size_t>(host.num_bytes()));
}

void ReferenceBackend::copy_to_host(const Tensor& device, const Tensor& host) const { copy_to_device(device, host); }

}  // namespace shoal
