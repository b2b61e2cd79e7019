// Engine: runs step plans and owns weights, cache memory and adapters. Used by scheduler/ (which knows only this
// interface, and a fake one in its tests) and by the command line's teacher forcing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/adapter_key.h"
#include "core/result.h"
#include "engine/adapter_states.h"
#include "engine/step_plan.h"

namespace shoal {

// Sizes that the scheduler plans with; fixed at start.
struct EngineInfo {
  std::string model_family;            // "solar", "rw", "santacoder", "cohere"
  std::string dtype;                   // "bfloat16", ...
  std::string device;                  // "cpu/avx2", ...
  std::int64_t vocab_size = 0;         // ids that may be sampled
  std::int64_t max_positions = 0;      // longest sequence the model can hold, prompt and output
  std::int64_t num_blocks = 0;         // cache blocks of 16 tokens
  std::int64_t max_step_tokens = 0;    // query tokens of one step
  std::int64_t max_sequences = 0;      // sequences of one step, and state slots
  std::int64_t max_scored_rows = 256;  // known tokens of one step that are scored: their logits take memory
  std::int64_t sliding_window = 0;     // tokens that a query sees in every layer; 0: all
  bool runs_beside_host = false;       // a step goes on while the host does something else
};

// Calls come from one thread at a time (the scheduler's), but where another is named.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  // Starts a step. One more may be started before the first is collected, if that has neither embeddings nor scores of
  // prompts: it runs behind the first and may take its samples (TokenSource::kPreviousSample). `plan` stays as it is
  // until the step is collected, and so do the adapters that it names. Throws if the step could not be started; then
  // there is nothing of it to collect.
  virtual void launch(const StepPlan& plan) = 0;
  // Waits for the older of the steps under way. The result is valid until the next launch. Throws only when the whole
  // step failed; it is under way no more.
  virtual const StepResult& collect() = 0;
  const StepResult& step(const StepPlan& plan) {
    launch(plan);
    return collect();
  }

  // A request wants an adapter, waits until it is on the device, pins it there, and releases it, also after a failure
  // or when it waits no more. Adapters move off the step path; the engine rings the Wakeup that it was made with when
  // a state changes.
  virtual AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) = 0;
  virtual TierState adapter_state(const AdapterTicket& ticket) const = 0;
  virtual Error adapter_error(const AdapterTicket& ticket) const = 0;  // with kFailed
  // None unless it is kOnDevice or kInUse.
  virtual std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) = 0;
  virtual void release_adapter(const AdapterTicket& ticket) = 0;

  // --- any thread ---
  // What lies at the adapter's source now, for want_adapter(); looks at files.
  virtual AdapterVersion adapter_version(const AdapterKey& key) const = 0;
  virtual AdapterStats adapter_stats() const = 0;
  // Some adapter will be on the device within moments, or is about to be told that it finds no room.
  virtual bool adapters_arriving() const = 0;
};

}  // namespace shoal
