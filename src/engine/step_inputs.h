// StepInputs: a StepPlan turned into the arrays of the forward contract. Owned by the engine and reused each step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_plan.h"
#include "layers/forward_input.h"
#include "ops/staging.h"

namespace shoal {

class StepInputs {
 public:
  // Room for the largest step on `backend`, which outlives this, so that none allocates.
  StepInputs(const Backend& backend, std::int64_t max_tokens, std::int64_t max_sequences, std::int64_t max_blocks_each);
  // Fills every array from the plan. `adapters`: the loaded adapter of each slot (null where a slot is free). A plan
  // that breaks its own rules is our mistake.
  void build(const StepPlan& plan, std::span<const AdapterWeights* const> adapters);

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(input_ids_.size()); }
  std::int64_t num_logit_rows() const { return static_cast<std::int64_t>(lm_head_indices_.size()); }
  // Queues the arrays' copy to the device, and what puts tokens of the step before among them: `previous_samples` i64
  // [sample rows] on the device. Gives them there; valid until the next build.
  ForwardInput forward_input(Context& ctx, const Tensor& previous_samples, std::span<const LayerCache> kv_cache);

 private:
  void clear();
  void add_sequence(const StepPlan& plan, const PlanSequence& sequence);
  void add_source(const PlanSequence& sequence);
  void build_block_tables(const StepPlan& plan);

  std::size_t max_tokens_, max_sequences_;
  std::int64_t max_blocks_each_;
  std::size_t max_block_entries_;
  Staging staging_;
  // Host arrays; on the CPU the device reads the same memory.
  std::vector<std::int64_t> input_ids_, slots_, lm_head_indices_;
  std::vector<std::int32_t> position_ids_, block_tables_, query_, cached_, cu_query_, cu_cached_;
  std::vector<std::int32_t> source_rows_;  // of the first tokens, -1: known here; empty: all are
  std::vector<std::int32_t> token_adapters_, logit_adapters_;
  AdapterGrouping token_groups_, logit_groups_;
  std::span<const AdapterWeights* const> adapters_;
  AdapterBatchData adapter_data_;
  SequenceLengths seqlen_;
  std::int64_t max_blocks_ = 0;
  std::int32_t max_s_ = 0;
  bool wants_hidden_ = false;  // of some sequence in place of logits
};

}  // namespace shoal
