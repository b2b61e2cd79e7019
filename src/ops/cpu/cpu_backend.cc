#include "ops/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/panels.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {

Element element_of(DType dtype) {
  if (dtype == DType::kFloat32) return Element::kFloat32;
  if (dtype == DType::kBFloat16) return Element::kBFloat16;
  CHECK_EQ(dtype_name(dtype), dtype_name(DType::kFloat16));
  return Element::kFloat16;
}

CpuBackend::CpuBackend(std::string_view isa, const KernelTable& kernels, ThreadPool& pool)
    : name_("cpu/" + std::string(isa)), kernels_(kernels), pool_(pool) {}

Matrix CpuBackend::allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const {
  CHECK_GT(rows, 0);
  CHECK_GT(cols, 0);
  Matrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.dtype = dtype;
  const Panels panels(element_of(dtype), rows, cols);
  matrix.storage = Buffer(allocator(), panels.count * panels.panel_bytes);
  // Rows past the last one stay zero for good; fill_rows never writes them.
  if (rows % kPanelRows != 0) {
    auto* last = static_cast<char*>(matrix.storage.raw()) + (panels.count - 1) * panels.panel_bytes;
    std::memset(last, 0, static_cast<std::size_t>(panels.panel_bytes));
  }
  return matrix;
}

void CpuBackend::fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const {
  CHECK_EQ(host_rows.dims(), 2);
  CHECK_EQ(host_rows.dim(1), matrix.cols);
  CHECK_GE(row_begin, 0);
  const std::int64_t row_end = row_begin + host_rows.dim(0);
  CHECK_LE(row_end, matrix.rows);
  const Panels panels(element_of(matrix.dtype), matrix.rows, matrix.cols);
  PackPanel pack;
  pack.source_element = element_of(host_rows.dtype());
  pack.source_stride_bytes = host_rows.row_stride() * dtype_bytes(host_rows.dtype());
  pack.columns = matrix.cols;
  pack.element = panels.element;
  for (std::int64_t row = row_begin; row < row_end; row += pack.count) {
    pack.lane = row % kPanelRows;
    pack.count = std::min(kPanelRows - pack.lane, row_end - row);
    pack.source = static_cast<const char*>(host_rows.raw()) + (row - row_begin) * pack.source_stride_bytes;
    pack.panel = static_cast<char*>(matrix.storage.raw()) + row / kPanelRows * panels.panel_bytes;
    kernels_.pack_panel(pack);
  }
}

void CpuBackend::copy_to_device(const Tensor& host, const Tensor& device) const {
  CHECK_EQ(host.describe(), device.describe());
  CHECK(host.contiguous());
  CHECK(device.contiguous());
  if (host.num_elements() == 0) return;
  std::memcpy(device.raw(), host.raw(), static_cast<std::size_t>(host.num_bytes()));
}

void CpuBackend::copy_to_host(const Tensor& device, const Tensor& host) const { copy_to_device(device, host); }

void CpuBackend::embedding(Context&, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                           const Tensor& out) const {
  const Panels panels(element_of(table.dtype), table.rows, table.cols);
  const bool wide_ids = ids.dtype() == DType::kInt64;
  // A row of a panel is spread over all its lines.
  parallel_rows(pool_, ids.dim(0), panels.panel_bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t id = wide_ids ? ids.data<std::int64_t>()[t] : std::int64_t{ids.data<std::int32_t>()[t]};
      UnpackRow unpack;
      unpack.panel = static_cast<const char*>(table.storage.raw()) + id / kPanelRows * panels.panel_bytes;
      unpack.element = panels.element;
      unpack.lane = id % kPanelRows;
      unpack.columns = table.cols;
      unpack.out = out.row<float>(t);
      unpack.accumulate = mode == EmbeddingOutput::kAccumulate;
      kernels_.unpack_row(unpack);
    }
  });
}

}  // namespace shoal::cpu
