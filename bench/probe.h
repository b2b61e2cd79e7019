// What this machine can do, measured by code that is not under test: the yardsticks of `shoal bench`.
#pragma once

#include <cstdint>
#include <string>

namespace shoal {

struct MachineRates {
  double read_gb_s = 0.0;       // a plain wide read of 4 GiB on all threads
  double matrix_gflop_s = 0.0;  // oneDNN's product at 4096^3; 0 where oneDNN was not there at build time
  std::string matrix_dtype;     // "bfloat16", or "float32" where the processor has no bfloat16 product
};

// Each rate is the best of a few runs.
MachineRates probe_machine(int num_threads);
// The GPU's: a plain wide read of 4 GiB, cuBLAS' product at 8192^3. StartError in a build without CUDA.
MachineRates probe_gpu();

}  // namespace shoal
