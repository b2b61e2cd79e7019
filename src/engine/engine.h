// Engine: runs step plans and owns weights, cache memory and adapters. Used by scheduler/ (which knows only this
// interface, and a fake one in its tests) and by the command line's teacher forcing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/adapter_key.h"
#include "core/result.h"
#include "engine/step_plan.h"

namespace shoal {

// Sizes that the scheduler plans with; fixed at start.
struct EngineInfo {
  std::string model_family;          // "solar", "rw", "santacoder", "cohere"
  std::string dtype;                 // "bfloat16", ...
  std::string device;                // "cpu/avx2", ...
  std::int64_t vocab_size = 0;       // ids that may be sampled
  std::int64_t max_positions = 0;    // longest sequence the model can hold, prompt and output
  std::int64_t num_blocks = 0;       // cache blocks of 16 tokens
  std::int64_t max_step_tokens = 0;  // query tokens of one step
  std::int64_t max_sequences = 0;    // sequences of one step, and state slots
  std::int64_t sliding_window = 0;   // tokens that a query sees in every layer; 0: all
};

// A pinned adapter. Slot -1 is the base model.
struct AdapterHandle {
  std::int32_t slot = -1;
};

enum class AdapterState : std::uint8_t { kLoading, kReady, kFailed };

struct AdapterStatus {
  AdapterState state = AdapterState::kLoading;
  std::optional<Error> error;     // with kFailed
  std::int64_t modules = 0;       // with kReady: linear parts it changes, all matched
  AdapterIdentity identity = {};  // with kReady
};

// All calls come from one thread at a time (the scheduler's).
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  // Runs one step. The result is valid until the next call. Throws only when the whole step failed.
  virtual const StepResult& step(const StepPlan& plan) = 0;

  // Pins an adapter and starts loading it, off the step path, if it is not there. The engine rings the Wakeup that it
  // was made with when a load ends. Each acquire is paired with one release, also after a failure.
  virtual AdapterHandle acquire_adapter(const AdapterKey& key) = 0;
  virtual AdapterStatus adapter_status(AdapterHandle handle) const = 0;
  virtual void release_adapter(AdapterHandle handle) = 0;
  // Adapters in memory now, for metrics.
  virtual std::int64_t num_loaded_adapters() const = 0;
};

}  // namespace shoal
