// Simulations in child processes, so that a CHECK, a crash or an endless loop is a failure like any other, and all
// processors are used. Used by the simulator's main program and its tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "simulator/simulation.h"

namespace shoal {

SimulationResult simulate_in_child(const Trace& trace);

struct RunsReport {
  std::int64_t num_runs = 0;
  SimulationCounts counts;
  std::optional<std::uint64_t> failed_seed;  // the lowest that failed, all before it being well
  std::string failure;
};
// The traces of `num_traces` seeds, beginning with `first_seed`, `num_jobs` at a time, until one fails.
RunsReport simulate_seeds(std::uint64_t first_seed, std::int64_t num_traces, std::int64_t num_jobs);

}  // namespace shoal
