#include "ops/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "core/result.h"

namespace shoal::cuda {
namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";

void* open_library() {
  // Beside the program or where the linker looks, then where toolkits install it.
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda-13.0/lib64/"}) {
    if (void* library = ::dlopen(fmt::format("{}{}", folder, kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw StartError(
      fmt::format("--device cuda: {} of CUDA 13 is not to be found ({}); set LD_LIBRARY_PATH to its folder", kLibrary,
                  ::dlerror()));
}

template <typename F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function == nullptr) throw StartError(fmt::format("--device cuda: {} holds no {}", kLibrary, name));
}

CublasLt load() {
  void* library = open_library();
  CublasLt lt{};
  find(library, "cublasLtCreate", lt.create);
  find(library, "cublasLtDestroy", lt.destroy);
  find(library, "cublasLtMatmul", lt.matmul);
  find(library, "cublasLtMatmulDescCreate", lt.desc_create);
  find(library, "cublasLtMatmulDescDestroy", lt.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", lt.desc_set);
  find(library, "cublasLtMatrixLayoutCreate", lt.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", lt.get_heuristic);
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt kLt = load();
  return kLt;
}

}  // namespace shoal::cuda
