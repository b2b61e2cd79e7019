// One run of the scheduler's loop through a trace, in virtual time on one thread. Used by the simulator's runs.
#pragma once

#include <cstdint>
#include <string>

#include "simulator/trace.h"

namespace shoal {

// What happened, so that it is known that enough did.
struct SimulationCounts {
  std::int64_t requests = 0, refused = 0, finished = 0, cancelled = 0, failed = 0;
  std::int64_t tokens = 0, steps = 0, preemptions = 0;
  std::int64_t prefix_hits = 0, prefix_evictions = 0;
  std::int64_t loads = 0, failed_loads = 0, device_evictions = 0, host_evictions = 0;
  double worst_wait_share = 0.0;  // of the longest that the first of all may wait
  std::uint64_t digest = 0;       // equal where all events and their times are

  void add(const SimulationCounts& other);
};

struct SimulationResult {
  SimulationCounts counts;
  std::string failure;  // the first; empty where all held
};

SimulationResult simulate(const Trace& trace);

}  // namespace shoal
