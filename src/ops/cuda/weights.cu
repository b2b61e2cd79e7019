// Weights on their way to the GPU: rows of a checkpoint through pinned memory, or random numbers made there.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/weight_upload.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void convert_kernel(const std::uint16_t* bits, const float* floats, DType from, T* out, std::int64_t count,
                               std::int32_t* overflow) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  float value = 0.0F;
  if (from == DType::kFloat32) {
    value = floats[i];
  } else if (from == DType::kBFloat16) {
    value = to_float(reinterpret_cast<const __nv_bfloat16*>(bits)[i]);
  } else {
    value = to_float(reinterpret_cast<const __half*>(bits)[i]);
  }
  out[i] = from_float<T>(value);
  if (isfinite(value) && !isfinite(to_float(out[i]))) *overflow = 1;
}

// A hash of the index as a uniform number in [-limit, limit): every byte written, no two rows alike.
template <typename T>
__global__ void random_kernel(T* out, std::int64_t count, std::uint64_t seed, float limit) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    std::uint64_t bits = (seed + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
    const auto unit = static_cast<float>(bits >> 40) * 0x1p-24F;
    out[i] = from_float<T>((2.0F * unit - 1.0F) * limit);
  }
}

}  // namespace

WeightUpload::WeightUpload() : overflow_(device_allocator(), sizeof(std::int32_t)) {
  CUDA_CHECK(cudaMemset(overflow_.raw(), 0, sizeof(std::int32_t)));
  for (Slot& slot : slots_) {
    slot.host = Buffer(pinned_allocator(), kSlotBytes);
    slot.device = Buffer(device_allocator(), kSlotBytes);
    CUDA_CHECK(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming));
  }
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

WeightUpload::~WeightUpload() {
  for (const Slot& slot : slots_) cudaEventDestroy(slot.free);
  cudaStreamDestroy(stream_);
}

void WeightUpload::put_rows(const Tensor& host_rows, void* to, DType dtype) {
  const std::lock_guard lock(mutex_);
  const std::int64_t row_bytes = host_rows.row_elements() * dtype_bytes(host_rows.dtype());
  const std::int64_t rows_together = std::max<std::int64_t>(1, kSlotBytes / row_bytes);
  CHECK_LE(row_bytes, kSlotBytes);
  for (std::int64_t begin = 0; begin < host_rows.dim(0); begin += rows_together) {
    const std::int64_t count = std::min(rows_together, host_rows.dim(0) - begin);
    Slot& slot = slots_[next_++ % slots_.size()];
    CUDA_CHECK(cudaEventSynchronize(slot.free));  // its copy of two rounds ago
    auto* staged = static_cast<std::byte*>(slot.host.raw());
    for (std::int64_t row = 0; row < count; ++row) {
      const Tensor source = host_rows.rows(begin + row, 1);
      std::memcpy(staged + row * row_bytes, source.raw(), static_cast<std::size_t>(row_bytes));
    }
    const std::int64_t elements = count * host_rows.row_elements();
    auto* target = static_cast<std::byte*>(to) + begin * host_rows.row_elements() * dtype_bytes(dtype);
    const bool same = host_rows.dtype() == dtype;
    CUDA_CHECK(cudaMemcpyAsync(same ? target : slot.device.raw(), staged, static_cast<std::size_t>(count * row_bytes),
                               cudaMemcpyHostToDevice, stream_));
    if (!same) {
      with_float_type(dtype, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        convert_kernel<T><<<blocks_for(elements, kThreads), kThreads, 0, stream_>>>(
            static_cast<const std::uint16_t*>(slot.device.raw()), static_cast<const float*>(slot.device.raw()),
            host_rows.dtype(), reinterpret_cast<T*>(target), elements, static_cast<std::int32_t*>(overflow_.raw()));
      });
      CUDA_CHECK(cudaGetLastError());
    }
    CUDA_CHECK(cudaEventRecord(slot.free, stream_));
  }
  // The caller's memory was copied; what reads the weight next runs on another stream.
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  if (host_rows.dtype() == dtype) return;
  std::int32_t overflow = 0;
  CUDA_CHECK(cudaMemcpy(&overflow, overflow_.raw(), sizeof overflow, cudaMemcpyDeviceToHost));
  if (overflow == 0) return;
  CUDA_CHECK(cudaMemset(overflow_.raw(), 0, sizeof overflow));
  throw std::range_error(fmt::format("a value is beyond {}", dtype_name(dtype)));
}

void CudaBackend::fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const {
  CHECK_EQ(host_rows.dim(1), matrix.cols);
  CHECK_LE(row_begin + host_rows.dim(0), matrix.rows);
  auto* to = static_cast<std::byte*>(matrix.storage.raw()) + row_begin * matrix.cols * dtype_bytes(matrix.dtype);
  weight_upload_->put_rows(host_rows, to, matrix.dtype);
}

bool CudaBackend::fill_random(Matrix& matrix, std::int64_t row_begin, std::int64_t row_count, std::uint64_t seed,
                              float limit) const {
  with_float_type(matrix.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    random_kernel<T><<<static_cast<unsigned>(multiprocessors_ * 8), kThreads, 0, load_stream_>>>(
        static_cast<T*>(matrix.storage.raw()) + row_begin * matrix.cols, row_count * matrix.cols, seed, limit);
  });
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(load_stream_));
  return true;
}

}  // namespace shoal::cuda
