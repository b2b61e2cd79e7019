// Products of a few rows, bound by the read of the weight. Used by matmul.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/tensor.h"
#include "ops/matrix.h"

namespace shoal::cuda {

// out (+)= x weight^T + bias where these kernels are the faster ones and their alignment holds; false otherwise, and
// then nothing happened.
bool launch_few_rows(const Tensor& x, const Matrix& weight, const Tensor& bias, bool accumulate, const Tensor& out,
                     cudaStream_t stream);

}  // namespace shoal::cuda
