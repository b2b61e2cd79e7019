// MatmulPlans: cuBLASLt's products, each shape with the fastest of the algorithms that the library offers, timed on
// its first use. Owned by CudaBackend.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/buffer.h"

namespace shoal::cuda {

// out [rows, columns] = x [rows, inner] weight^T [columns, inner], + out with accumulate. Strides in elements.
struct MatmulShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  std::int64_t x_stride = 0;
  std::int64_t weight_stride = 0;
  std::int64_t out_stride = 0;
  DType x_dtype = DType::kFloat32;  // of weight too
  DType out_dtype = DType::kFloat32;
  bool weight_transposed = false;  // weight lies as [inner, columns]
  bool accumulate = false;
  std::int64_t alignment = 0;  // bytes, set by MatmulPlans

  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulOperands {
  const void* x;
  const void* weight;
  void* out;
  float scale = 1.0F;  // of the product
};

class MatmulPlans {
 public:
  MatmulPlans();
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  void run(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream);

 private:
  struct Plan;
  Plan& plan_for(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream);
  Plan make_plan(const MatmulShape& shape) const;
  void choose_fastest(Plan& plan, const MatmulOperands& operands, cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<MatmulShape, Plan> plans_;
};

}  // namespace shoal::cuda
