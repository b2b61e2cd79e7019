// Stands in for ops/cuda where the build has no CUDA.
#include "core/result.h"
#include "ops/backends.h"

namespace shoal {

bool cuda_is_present() { return false; }

std::unique_ptr<Backend> make_cuda_backend() {
  throw StartError("--device cuda: this shoal was built without CUDA; `make build-cuda` builds it with");
}

}  // namespace shoal
