// Products of a few rows, bound by the read of the weight. Used by matmul.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "core/tensor.h"
#include "ops/matrix.h"
#include "ops/modes.h"

namespace shoal::cuda {

// What becomes of a product: out = it, out += it, or out = f(it).
struct FewRowsEpilogue {
  const Tensor& bias;  // float32 [columns] or undefined
  bool accumulate = false;
  std::optional<Activation> activation = std::nullopt;
};

// out (+)= x weight^T + bias where these kernels are the faster ones and their alignment holds; false otherwise, and
// then nothing happened.
bool launch_few_rows(const Tensor& x, const Matrix& weight, const FewRowsEpilogue& epilogue, const Tensor& out,
                     cudaStream_t stream);

}  // namespace shoal::cuda
