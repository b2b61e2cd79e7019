// The matrix rate by oneDNN; probe_matrix_none.cc takes its place where oneDNN is not installed. Used by probe_machine.
#pragma once

#include <string>

namespace shoal {

struct MatrixRate {
  double gflop_s = 0.0;  // 0: not measured
  std::string dtype;
};

// The best of a few products at 4096^3.
MatrixRate probe_matrix_rate(int num_threads);

}  // namespace shoal
