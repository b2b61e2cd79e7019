#include "scheduler/plan_rows.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/block_size.h"

namespace shoal::plan_rows {
namespace {

void write_mask(const Sequence& sequence, PlanSequence& row, StepPlan& plan) {
  const auto mask = sequence.grammar->mask();
  row.mask_row = static_cast<std::int32_t>(plan.mask_words.size() / mask.size());
  plan.mask_words.insert(plan.mask_words.end(), mask.begin(), mask.end());
}

void write_history(Sequence& sequence, PlanSequence& row, StepPlan& plan) {
  row.history_begin = static_cast<std::int64_t>(plan.history_ids.size());
  row.history_length = static_cast<std::int32_t>(sequence.num_tokens());
  row.history_prompt_length = static_cast<std::int32_t>(sequence.num_prompt_tokens);
  plan.history_ids.insert(plan.history_ids.end(), sequence.tokens.begin(), sequence.tokens.end());
  sequence.history_given = true;
}

// Each token of the prompt is scored by the logits of the one before it; those that were, before a preemption, are not
// scored again.
void write_scores(const Sequence& sequence, PlanSequence& row, StepPlan& plan) {
  const std::int64_t chunk_end = sequence.num_cached + row.query_length;
  const std::int64_t begin = std::max(sequence.num_cached, static_cast<std::int64_t>(sequence.prompt_scores.size()));
  const std::int64_t end = std::min(chunk_end, sequence.num_prompt_tokens - 1);
  if (begin >= end) return;
  row.scored_rows = static_cast<std::int32_t>(end - begin);
  row.logit_rows = static_cast<std::int32_t>(chunk_end - begin);
  row.target_begin = static_cast<std::int64_t>(plan.target_ids.size());
  row.target_top = sequence.request.scores.prompt_top;
  plan.target_ids.insert(plan.target_ids.end(), sequence.tokens.begin() + begin + 1, sequence.tokens.begin() + end + 1);
}

void write_biases(const Sequence& sequence, PlanSequence& row, StepPlan& plan) {
  std::span<const std::int64_t> banned = sequence.answer.banned_ids();
  // An answer that is whole ends, however short it is.
  if (!banned.empty() && sequence.grammar && !sequence.grammar->allows_others(banned)) banned = {};
  row.bias_begin = static_cast<std::int64_t>(plan.biases.size());
  for (const LogitBias& bias : sequence.request.logit_bias) {
    if (!std::binary_search(banned.begin(), banned.end(), std::int64_t{bias.id})) plan.biases.push_back(bias);
  }
  for (const std::int64_t id : banned) {
    plan.biases.push_back({.id = static_cast<std::int32_t>(id), .value = -std::numeric_limits<float>::infinity()});
  }
  row.num_biases = static_cast<std::int32_t>(std::ssize(plan.biases) - row.bias_begin);
}

PlanSequence row_of(const Sequence& sequence, std::int64_t cached_length, std::int64_t query_length, StepPlan& plan) {
  const std::int64_t num_blocks = blocks_for_tokens(cached_length + query_length);
  const PlanSequence row{.state_slot = sequence.state_slot,
                         .query_length = static_cast<std::int32_t>(query_length),
                         .cached_length = static_cast<std::int32_t>(cached_length),
                         .block_begin = static_cast<std::int64_t>(plan.block_ids.size()),
                         .num_blocks = static_cast<std::int32_t>(num_blocks),
                         .adapter = sequence.pin.pinned().slot,
                         .sampling = sequence.request.sampling,
                         .embed = sequence.request.embed};
  const auto block_ids = sequence.blocks.block_ids().first(static_cast<std::size_t>(num_blocks));
  plan.block_ids.insert(plan.block_ids.end(), block_ids.begin(), block_ids.end());
  return row;
}

void write_sampling(const Sequence& sequence, PlanSequence& row, StepPlan& plan) {
  row.score = sequence.request.scores.answer;
  row.num_top = sequence.request.scores.answer_top;
  write_biases(sequence, row, plan);
  if (sequence.grammar) write_mask(sequence, row, plan);
}

}  // namespace

void add(Sequence& sequence, std::int64_t query_length, StepPlan& plan) {
  PlanSequence row = row_of(sequence, sequence.num_cached, query_length, plan);
  row.input_begin = static_cast<std::int64_t>(plan.input_ids.size());
  row.logit_rows = query_length == sequence.num_pending() ? 1 : 0;
  if (row.sampling.has_penalties() && !sequence.history_given) write_history(sequence, row, plan);
  if (sequence.wants_prompt_scores()) write_scores(sequence, row, plan);
  if (row.logit_rows > row.scored_rows) write_sampling(sequence, row, plan);
  const auto first_token = sequence.tokens.begin() + sequence.num_cached;
  plan.input_ids.insert(plan.input_ids.end(), first_token, first_token + query_length);
  plan.sequences.push_back(row);
}

void add_next(const Sequence& sequence, const PlanSequence& before, std::int32_t source_row, StepPlan& plan) {
  PlanSequence row = row_of(sequence, before.cached_length + before.query_length, 1, plan);
  row.source = TokenSource::kPreviousSample;
  row.source_row = source_row;
  row.logit_rows = 1;
  write_sampling(sequence, row, plan);
  plan.sequences.push_back(row);
}

}  // namespace shoal::plan_rows
