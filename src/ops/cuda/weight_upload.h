// WeightUpload: rows of a checkpoint to the GPU through two pinned buffers, so that a file is read while the rows
// before travel. Owned by CudaBackend.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>

#include "ops/cuda/device_memory.h"

namespace shoal::cuda {

class WeightUpload {
 public:
  WeightUpload();
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;
  WeightUpload& operator=(const WeightUpload&) = delete;

  // host_rows [n, width] of any float dtype -> `to`, n * width contiguous values of `dtype`. Safe from any thread; the
  // rows are there when it returns. Throws std::range_error where a finite value is beyond `dtype`.
  void put_rows(const Tensor& host_rows, void* to, DType dtype);

 private:
  static constexpr std::int64_t kSlotBytes = std::int64_t{16} << 20;
  struct Slot {
    Buffer host;
    Buffer device;  // where the dtype changes on the way
    cudaEvent_t free = nullptr;
  };

  Buffer overflow_;  // int32 on the device: 1 once a value was
  std::mutex mutex_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace shoal::cuda
