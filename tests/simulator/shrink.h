// Shrinking: the smallest trace that still fails. Used by the simulator's main program.
#pragma once

#include <cstdint>
#include <functional>

#include "simulator/trace.h"

namespace shoal {

// Leaves out requests, cancels and all else, and makes numbers smaller, as long as `fails` says that the trace fails.
// Asks at most `most_runs` times. `trace` fails.
Trace shrink(Trace trace, const std::function<bool(const Trace&)>& fails, std::int64_t most_runs);

}  // namespace shoal
