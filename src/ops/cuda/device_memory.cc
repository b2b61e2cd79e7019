#include "ops/cuda/device_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "core/result.h"
#include "ops/cuda/cuda_error.h"

namespace shoal::cuda {
namespace {

void* device_allocate(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the next call starts clean
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw StartError(
        fmt::format("out of GPU memory: {} bytes asked for, {} of {} free; lower --kv-cache-memory, "
                    "--adapter-memory-fraction or --max-batch-prefill-tokens, or serve a smaller model",
                    bytes, free_bytes, total_bytes));
  }
  check(error, "cudaMalloc");
  return data;
}

// Runs in destructors too, where the context may be gone: the memory went with it.
void device_release(void* data, std::int64_t) { cudaFree(data); }

void* pinned_allocate(std::int64_t bytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocHost(&data, static_cast<std::size_t>(bytes)));
  return data;
}

void pinned_release(void* data, std::int64_t) { cudaFreeHost(data); }

}  // namespace

const Allocator& device_allocator() {
  static constexpr Allocator kDevice{.allocate = device_allocate, .release = device_release};
  return kDevice;
}

const Allocator& pinned_allocator() {
  static constexpr Allocator kPinned{.allocate = pinned_allocate, .release = pinned_release};
  return kPinned;
}

}  // namespace shoal::cuda
