#include "ops/cuda/matmul_plans.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/result.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{64} << 20;
constexpr int kMostAlgorithms = 24;
constexpr int kTimedRuns = 3;

void check_lt(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw StartError(fmt::format("cuBLASLt: error {} at {}", int{status}, call));
}

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::kFloat32) return CUDA_R_32F;
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

cublasLtMatrixLayout_t make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_lt(cublas_lt().layout_create(&layout, cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), stride),
           "cublasLtMatrixLayoutCreate");
  return layout;
}

// The largest power of two up to 16 bytes at which every row of every operand starts. Column slices and odd widths
// start anywhere their element does.
std::int64_t common_alignment(const MatmulShape& shape, const MatmulOperands& operands) {
  const auto bytes = [](const void* data, std::int64_t stride, DType dtype) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data)) |
           static_cast<std::uint64_t>(stride * dtype_bytes(dtype));
  };
  const std::uint64_t all = bytes(operands.x, shape.x_stride, shape.x_dtype) |
                            bytes(operands.weight, shape.weight_stride, shape.x_dtype) |
                            bytes(operands.out, shape.out_stride, shape.out_dtype) | 16U;
  return static_cast<std::int64_t>(all & (~all + 1));  // its lowest bit
}

}  // namespace

// cuBLAS counts columns first: it sees out^T [columns, rows] = weight [columns, inner] x^T [inner, rows].
struct MatmulPlans::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;
  cublasLtMatmulAlgo_t algorithm{};
  bool chosen = false;
  float beta = 0.0F;
};

MatmulPlans::MatmulPlans() : workspace_(device_allocator(), kWorkspaceBytes) {
  check_lt(cublas_lt().create(&handle_), "cublasLtCreate");
}

MatmulPlans::~MatmulPlans() {
  for (auto& [shape, plan] : plans_) {
    cublas_lt().layout_destroy(plan.weight);
    cublas_lt().layout_destroy(plan.x);
    cublas_lt().layout_destroy(plan.out);
    cublas_lt().desc_destroy(plan.desc);
  }
  cublas_lt().destroy(handle_);
}

void MatmulPlans::run(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  MatmulShape aligned = shape;
  aligned.alignment = common_alignment(shape, operands);
  const Plan& plan = plan_for(aligned, operands, stream);
  check_lt(cublas_lt().matmul(handle_, plan.desc, &operands.scale, operands.weight, plan.weight, operands.x, plan.x,
                              &plan.beta, operands.out, plan.out, operands.out, plan.out, &plan.algorithm,
                              workspace_.raw(), kWorkspaceBytes, stream),
           "cublasLtMatmul");
}

MatmulPlans::Plan& MatmulPlans::plan_for(const MatmulShape& shape, const MatmulOperands& operands,
                                         cudaStream_t stream) {
  const auto found = plans_.find(shape);
  Plan& plan = found != plans_.end() ? found->second : plans_.emplace(shape, make_plan(shape)).first->second;
  if (!plan.chosen) choose_fastest(plan, operands, stream);
  return plan;
}

MatmulPlans::Plan MatmulPlans::make_plan(const MatmulShape& shape) const {
  const CublasLt& lt = cublas_lt();
  Plan plan;
  // CUBLAS_COMPUTE_32F multiplies float32 as float32, not as tf32.
  check_lt(lt.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = shape.weight_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
  check_lt(lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), "transa");
  plan.weight = shape.weight_transposed ? make_layout(shape.x_dtype, shape.columns, shape.inner, shape.weight_stride)
                                        : make_layout(shape.x_dtype, shape.inner, shape.columns, shape.weight_stride);
  plan.x = make_layout(shape.x_dtype, shape.inner, shape.rows, shape.x_stride);
  plan.out = make_layout(shape.out_dtype, shape.columns, shape.rows, shape.out_stride);
  plan.beta = shape.accumulate ? 1.0F : 0.0F;

  cublasLtMatmulPreference_t preference = nullptr;
  check_lt(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto workspace_bytes = static_cast<std::uint64_t>(kWorkspaceBytes);
  check_lt(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                             sizeof(workspace_bytes)),
           "workspace");
  // Parts of K that are summed apart meet in float32, in one order.
  const auto reduction = static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  check_lt(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction)),
           "reduction scheme");
  const auto alignment = static_cast<std::uint32_t>(shape.alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check_lt(lt.preference_set(preference, attribute, &alignment, sizeof(alignment)), "alignment");
  }
  plan.candidates.resize(kMostAlgorithms);
  int count = 0;
  const cublasStatus_t status = lt.get_heuristic(handle_, plan.desc, plan.weight, plan.x, plan.out, plan.out,
                                                 preference, kMostAlgorithms, plan.candidates.data(), &count);
  lt.preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    throw StartError(fmt::format("cuBLASLt has no product of {} x {} with {} x {} {}", shape.rows, shape.inner,
                                 shape.inner, shape.columns, dtype_name(shape.x_dtype)));
  }
  plan.candidates.resize(static_cast<std::size_t>(count));
  plan.algorithm = plan.candidates.front().algo;
  return plan;
}

void MatmulPlans::choose_fastest(Plan& plan, const MatmulOperands& operands, cudaStream_t stream) const {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(stream, &capturing));
  if (capturing != cudaStreamCaptureStatusNone) return;  // the library's first choice, until an eager step comes by
  plan.chosen = true;
  if (plan.candidates.size() == 1) return;
  const CublasLt& lt = cublas_lt();
  std::array<cudaEvent_t, 2> events{};
  for (cudaEvent_t& event : events) CUDA_CHECK(cudaEventCreate(&event));
  // Timed into the workspace's second half would miss the output's place in memory; sums that accumulate must not run
  // twice, so they are timed with nothing added up: scale 0 and beta 1 leave what is there.
  const float scale = plan.beta == 0.0F ? operands.scale : 0.0F;
  float best_ms = 0.0F;
  for (const cublasLtMatmulHeuristicResult_t& candidate : plan.candidates) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    bool failed = false;
    for (int run = -1; run < kTimedRuns && !failed; ++run) {
      if (run == 0) CUDA_CHECK(cudaEventRecord(events[0], stream));
      failed = lt.matmul(handle_, plan.desc, &scale, operands.weight, plan.weight, operands.x, plan.x, &plan.beta,
                         operands.out, plan.out, operands.out, plan.out, &candidate.algo, workspace_.raw(),
                         kWorkspaceBytes, stream) != CUBLAS_STATUS_SUCCESS;
    }
    if (failed) continue;
    CUDA_CHECK(cudaEventRecord(events[1], stream));
    CUDA_CHECK(cudaEventSynchronize(events[1]));
    float elapsed_ms = 0.0F;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, events[0], events[1]));
    if (best_ms != 0.0F && elapsed_ms >= best_ms) continue;
    best_ms = elapsed_ms;
    plan.algorithm = candidate.algo;
  }
  for (const cudaEvent_t event : events) CUDA_CHECK(cudaEventDestroy(event));
}

}  // namespace shoal::cuda
