#include "engine/largest_steps.h"

#include <algorithm>

#include "core/block_size.h"

namespace shoal {
namespace {

void add_sequence(const EngineInfo& info, std::int64_t cached_length, std::int64_t query_length, StepPlan& plan) {
  PlanSequence sequence;
  sequence.state_slot = static_cast<std::int32_t>(plan.sequences.size());
  sequence.input_begin = 0;
  sequence.query_length = static_cast<std::int32_t>(query_length);
  sequence.cached_length = static_cast<std::int32_t>(cached_length);
  sequence.num_blocks = static_cast<std::int32_t>(blocks_for_tokens(cached_length + query_length));
  sequence.logit_rows = 1;
  plan.sequences.push_back(sequence);
  plan.input_ids.resize(std::max(plan.input_ids.size(), static_cast<std::size_t>(query_length)), 0);
  plan.block_ids.resize(static_cast<std::size_t>(blocks_for_tokens(info.max_positions)), 0);
}

}  // namespace

StepPlan largest_decode(const EngineInfo& info, std::int64_t num_sequences) {
  StepPlan plan;
  for (std::int64_t i = 0; i < num_sequences; ++i) add_sequence(info, info.max_positions - 1, 1, plan);
  return plan;
}

StepPlan largest_step(const EngineInfo& info) {
  const std::int64_t sequences = std::min(info.max_sequences, info.max_step_tokens);
  const std::int64_t prompts = std::min(sequences, (info.max_step_tokens - 1) / info.max_positions + 1);
  StepPlan plan = largest_decode(info, sequences - prompts);
  std::int64_t left = info.max_step_tokens - std::ssize(plan.sequences);
  for (std::int64_t i = prompts; i > 0; --i) {
    const std::int64_t prompt = std::min(left / i, info.max_positions);
    add_sequence(info, info.max_positions - prompt, prompt, plan);
    left -= prompt;
  }
  return plan;
}

}  // namespace shoal
