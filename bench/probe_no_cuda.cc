// Stands in for probe_cuda.cu where the build has no CUDA.
#include "core/result.h"
#include "probe.h"

namespace shoal {

MachineRates probe_gpu() { throw StartError("this shoal was built without CUDA"); }

}  // namespace shoal
