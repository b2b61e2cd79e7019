// Kernels that are placed on the GPU while the one before them still runs: on sm_90 and later a launch costs its
// start only once, not once a kernel. Used by the kernels of a decode step, which are shorter than their starts.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "ops/cuda/cuda_error.h"

namespace shoal::cuda {

// The first thing that a kernel of launch_early does with memory that others write: before it stand only indices and
// loads of weights. All that came earlier on the stream is done when it returns.
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

inline bool starts_early() {
  static const bool kStartsEarly = [] {
    int device = 0;
    int major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return kStartsEarly;
}

template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                  Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = starts_early() ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace shoal::cuda
