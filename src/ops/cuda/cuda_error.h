// Turns a failed CUDA call into an exception with its name: out of memory is the start's or the step's trouble,
// anything else our mistake or the machine's. Used by the files of this folder.
#pragma once

#include <cuda_runtime_api.h>

namespace shoal::cuda {

// Throws StartError naming the call and CUDA's own words for `error`.
void check(cudaError_t error, const char* call);

}  // namespace shoal::cuda

#define CUDA_CHECK(call) ::shoal::cuda::check((call), #call)
