#include "engine/step_inputs.h"

#include <algorithm>

namespace shoal {
namespace {

// Tensor has no const form; ops only read these.
template <typename T>
Tensor view_of(const std::vector<T>& values, DType dtype) {
  return {const_cast<T*>(values.data()), dtype, {static_cast<std::int64_t>(values.size())}};
}

}  // namespace

void StepInputs::reserve(std::int64_t max_tokens, std::int64_t max_sequences, std::int64_t max_blocks_each) {
  const auto tokens = static_cast<std::size_t>(max_tokens);
  const auto sequences = static_cast<std::size_t>(max_sequences);
  for (std::vector<std::int64_t>* values : {&input_ids_, &slots_, &lm_head_indices_}) values->reserve(tokens);
  for (std::vector<std::int32_t>* values : {&position_ids_, &token_adapters_, &logit_adapters_})
    values->reserve(tokens);
  for (std::vector<std::int32_t>* values : {&query_, &cached_, &cu_query_, &cu_cached_}) values->reserve(sequences + 1);
  block_tables_.reserve(sequences * static_cast<std::size_t>(max_blocks_each));
  token_groups_.reserve(max_tokens);
  logit_groups_.reserve(max_tokens);
}

void StepInputs::clear() {
  for (std::vector<std::int64_t>* values : {&input_ids_, &slots_, &lm_head_indices_}) values->clear();
  for (std::vector<std::int32_t>* values :
       {&position_ids_, &query_, &cached_, &cu_query_, &cu_cached_, &token_adapters_, &logit_adapters_}) {
    values->clear();
  }
  cu_query_.push_back(0);
  cu_cached_.push_back(0);
  max_blocks_ = 0;
  max_s_ = 0;
  seqlen_ = {};
}

void StepInputs::build(const StepPlan& plan, std::span<const std::int64_t> previous_samples,
                       std::span<const AdapterWeights* const> adapters) {
  clear();
  for (const PlanSequence& sequence : plan.sequences) add_sequence(plan, sequence, previous_samples);
  build_block_tables(plan);
  seqlen_.query = view_of(query_, DType::kInt32);
  seqlen_.cached = view_of(cached_, DType::kInt32);
  seqlen_.cu_query = view_of(cu_query_, DType::kInt32);
  seqlen_.cu_cached = view_of(cu_cached_, DType::kInt32);
  seqlen_.host_query = query_;
  seqlen_.host_cached = cached_;
  seqlen_.host_cu_query = cu_query_;
  seqlen_.host_cu_cached = cu_cached_;
  adapters_ = adapters;
  token_groups_.build(token_adapters_, adapters);
  logit_groups_.build(logit_adapters_, adapters);
  adapter_data_ = {.adapters = adapters_, .tokens = token_groups_.batch(), .logits = logit_groups_.batch()};
}

void StepInputs::add_sequence(const StepPlan& plan, const PlanSequence& sequence,
                              std::span<const std::int64_t> previous_samples) {
  CHECK_GE(sequence.query_length, 1);
  CHECK_GE(sequence.cached_length, 0);
  const std::int32_t total = sequence.cached_length + sequence.query_length;
  CHECK_GE(sequence.num_blocks * kBlockSize, total);
  if (sequence.query_length == 1) {
    CHECK_EQ(seqlen_.num_decode, static_cast<std::int64_t>(query_.size()));  // one-token sequences come first
    ++seqlen_.num_decode;
  }
  for (std::int32_t i = 0; i < sequence.query_length; ++i) {
    const std::int32_t position = sequence.cached_length + i;
    const auto block_index = static_cast<std::size_t>(sequence.block_begin + position / kBlockSize);
    if (sequence.source == TokenSource::kPreviousSample) {
      CHECK_EQ(sequence.query_length, 1);
      input_ids_.push_back(previous_samples[static_cast<std::size_t>(sequence.source_row)]);
    } else {
      input_ids_.push_back(plan.input_ids.at(static_cast<std::size_t>(sequence.input_begin + i)));
    }
    position_ids_.push_back(position);
    slots_.push_back(plan.block_ids.at(block_index) * kBlockSize + position % kBlockSize);
    token_adapters_.push_back(sequence.adapter);
  }
  const std::int64_t end = num_tokens();
  CHECK_LE(sequence.logit_rows, sequence.query_length);
  for (std::int64_t row = end - sequence.logit_rows; row < end; ++row) {
    lm_head_indices_.push_back(row);
    logit_adapters_.push_back(sequence.adapter);
  }
  query_.push_back(sequence.query_length);
  cached_.push_back(sequence.cached_length);
  cu_query_.push_back(cu_query_.back() + sequence.query_length);
  cu_cached_.push_back(cu_cached_.back() + sequence.cached_length);
  max_blocks_ = std::max<std::int64_t>(max_blocks_, sequence.num_blocks);
  max_s_ = std::max(max_s_, total);
}

void StepInputs::build_block_tables(const StepPlan& plan) {
  block_tables_.assign(plan.sequences.size() * static_cast<std::size_t>(max_blocks_), -1);
  std::int32_t* row = block_tables_.data();
  for (const PlanSequence& sequence : plan.sequences) {
    const auto begin = plan.block_ids.begin() + sequence.block_begin;
    std::copy(begin, begin + sequence.num_blocks, row);
    row += max_blocks_;
  }
}

ForwardInput StepInputs::forward_input(std::span<const LayerCache> kv_cache) const {
  const bool all_decode = seqlen_.num_decode == seqlen_.num_sequences();
  return {.input_ids = view_of(input_ids_, DType::kInt64),
          .position_ids = view_of(position_ids_, DType::kInt32),
          .cu_seqlen_prefill = all_decode ? Tensor() : seqlen_.cu_query,
          .kv_cache = kv_cache,
          .block_tables = view_of(block_tables_, DType::kInt32).reshape({seqlen_.num_sequences(), max_blocks_}),
          .slots = view_of(slots_, DType::kInt64),
          .seqlen = seqlen_,
          .max_s = max_s_,
          .adapter_data = adapter_data_,
          .prefill_cache_indices = Tensor(),
          .lm_head_indices = view_of(lm_head_indices_, DType::kInt64),
          .skip_lm_head = false};
}

}  // namespace shoal
