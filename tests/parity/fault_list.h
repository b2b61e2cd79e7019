// The committed list of deliberate faults: each is one that a programmer could make, with the golden that must see it.
// Used by the fault test.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "parity/fault_engine.h"
#include "parity/fault_folder.h"
#include "parity/fault_ops.h"

namespace shoal {

// The way of the parity test in which the fault must be seen.
enum class FaultMode : std::uint8_t {
  kPrefill,       // each sequence of the run whole
  kChunks,        // in chunks of 5
  kTokenByToken,  // from position 2
  kMixed,         // whole, the base model and every adapter of the case in one batch
  kGreedy,        // greedy decoding
};

// Exactly one of the last four members is set: where the fault lies.
struct Fault {
  std::string_view name;
  std::string_view wrong;         // what the program would do wrong
  std::string_view golden;        // the case that sees it
  std::string_view adapter = {};  // the run, "" for the base model
  FaultMode mode = FaultMode::kPrefill;
  OpFaultMaker ops = nullptr;                           // in operations
  std::string_view config = {};                         // in what is read from config.json: a JSON merge patch of it
  void (*files)(const FaultyFolder& folder) = nullptr;  // in how files are read, shown by other files
  PlanFault plan = nullptr;                             // in the scheduler's step plans
};

std::vector<Fault> fault_list();

}  // namespace shoal
