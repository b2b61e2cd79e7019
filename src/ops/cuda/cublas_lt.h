// The few functions of cuBLASLt that we call, found at run time: a build with CUDA starts on a machine without its
// libraries, as the CPU server. Used by matmul_plans.cc.
#pragma once

#include <cublasLt.h>

namespace shoal::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
};

// Loads libcublasLt.so.13 on the first call; StartError where it is not to be found.
const CublasLt& cublas_lt();

}  // namespace shoal::cuda
