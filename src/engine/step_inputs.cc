#include "engine/step_inputs.h"

#include <algorithm>
#include <bit>

#include "ops/sampling.h"

namespace shoal {
namespace {

// Of all arrays of a step, each rounded up to the alignment of Staging.
std::int64_t staging_bytes(std::int64_t tokens, std::int64_t sequences, std::int64_t block_entries) {
  constexpr std::int64_t kArrays = 14;
  const std::int64_t group_bytes =
      2 * tokens * static_cast<std::int64_t>(2 * sizeof(LoraGroupRef) + sizeof(std::int32_t));
  return tokens * 28 + 5 * (sequences + 1) * 4 + block_entries * 4 + group_bytes + kArrays * Staging::kAlignment;
}

}  // namespace

StepInputs::StepInputs(const Backend& backend, std::int64_t max_tokens, std::int64_t max_sequences,
                       std::int64_t max_blocks_each)
    : max_tokens_(static_cast<std::size_t>(max_tokens)),
      max_sequences_(static_cast<std::size_t>(max_sequences)),
      max_blocks_each_(max_blocks_each),
      max_block_entries_(static_cast<std::size_t>(max_sequences * max_blocks_each)),
      staging_(backend, staging_bytes(max_tokens, max_sequences, max_sequences * max_blocks_each)) {
  for (std::vector<std::int64_t>* values : {&input_ids_, &slots_, &lm_head_indices_}) values->reserve(max_tokens_);
  for (std::vector<std::int32_t>* values : {&position_ids_, &token_adapters_, &logit_adapters_})
    values->reserve(max_tokens_);
  for (std::vector<std::int32_t>* values : {&query_, &cached_, &cu_query_, &cu_cached_, &source_rows_})
    values->reserve(max_sequences_ + 1);
  block_tables_.reserve(max_block_entries_);
  token_groups_.reserve(max_tokens);
  logit_groups_.reserve(max_tokens);
}

void StepInputs::clear() {
  for (std::vector<std::int64_t>* values : {&input_ids_, &slots_, &lm_head_indices_}) values->clear();
  for (std::vector<std::int32_t>* values : {&position_ids_, &query_, &cached_, &cu_query_, &cu_cached_, &source_rows_,
                                            &token_adapters_, &logit_adapters_}) {
    values->clear();
  }
  cu_query_.push_back(0);
  cu_cached_.push_back(0);
  max_blocks_ = 0;
  max_s_ = 0;
  wants_hidden_ = false;
  seqlen_ = {};
}

void StepInputs::build(const StepPlan& plan, std::span<const AdapterWeights* const> adapters) {
  clear();
  for (const PlanSequence& sequence : plan.sequences) add_sequence(plan, sequence);
  build_block_tables(plan);
  seqlen_.host_query = query_;
  seqlen_.host_cached = cached_;
  seqlen_.host_cu_query = cu_query_;
  seqlen_.host_cu_cached = cu_cached_;
  adapters_ = adapters;
  token_groups_.build(token_adapters_, adapters);
  logit_groups_.build(logit_adapters_, adapters);
}

// Sequences of one token come first: the index of one is that of its token.
void StepInputs::add_source(const PlanSequence& sequence) {
  if (sequence.source == TokenSource::kHost) return;
  CHECK_EQ(sequence.query_length, 1);
  source_rows_.resize(query_.size(), -1);
  source_rows_.push_back(sequence.source_row);
}

void StepInputs::add_sequence(const StepPlan& plan, const PlanSequence& sequence) {
  CHECK_GE(sequence.query_length, 1);
  CHECK_GE(sequence.cached_length, 0);
  const std::int32_t total = sequence.cached_length + sequence.query_length;
  CHECK_GE(sequence.num_blocks * kBlockSize, total);
  if (sequence.query_length == 1) {
    CHECK_EQ(seqlen_.num_decode, static_cast<std::int64_t>(query_.size()));  // one-token sequences come first
    ++seqlen_.num_decode;
  }
  add_source(sequence);
  for (std::int32_t i = 0; i < sequence.query_length; ++i) {
    const std::int32_t position = sequence.cached_length + i;
    const auto block_index = static_cast<std::size_t>(sequence.block_begin + position / kBlockSize);
    if (sequence.source == TokenSource::kPreviousSample) {
      input_ids_.push_back(0);
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
  wants_hidden_ = wants_hidden_ || (sequence.embed && sequence.logit_rows > 0);
  query_.push_back(sequence.query_length);
  cached_.push_back(sequence.cached_length);
  cu_query_.push_back(cu_query_.back() + sequence.query_length);
  cu_cached_.push_back(cu_cached_.back() + sequence.cached_length);
  max_blocks_ = std::max<std::int64_t>(max_blocks_, sequence.num_blocks);
  max_s_ = std::max(max_s_, total);
}

void StepInputs::build_block_tables(const StepPlan& plan) {
  // A power of two: captured graphs fit while sequences grow.
  max_blocks_ = std::min<std::int64_t>(
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(max_blocks_))), max_blocks_each_);
  block_tables_.assign(plan.sequences.size() * static_cast<std::size_t>(max_blocks_), -1);
  std::int32_t* row = block_tables_.data();
  for (const PlanSequence& sequence : plan.sequences) {
    const auto begin = plan.block_ids.begin() + sequence.block_begin;
    std::copy(begin, begin + sequence.num_blocks, row);
    row += max_blocks_;
  }
}

ForwardInput StepInputs::forward_input(Context& ctx, const Tensor& previous_samples,
                                       std::span<const LayerCache> kv_cache) {
  staging_.begin();
  const Tensor input_ids = staging_.put(input_ids_, DType::kInt64, max_tokens_);
  const Tensor slots = staging_.put(slots_, DType::kInt64, max_tokens_);
  const Tensor position_ids = staging_.put(position_ids_, DType::kInt32, max_tokens_);
  const Tensor lm_head_indices = staging_.put(lm_head_indices_, DType::kInt64, max_tokens_);
  seqlen_.query = staging_.put(query_, DType::kInt32, max_sequences_ + 1);
  seqlen_.cached = staging_.put(cached_, DType::kInt32, max_sequences_ + 1);
  seqlen_.cu_query = staging_.put(cu_query_, DType::kInt32, max_sequences_ + 1);
  seqlen_.cu_cached = staging_.put(cu_cached_, DType::kInt32, max_sequences_ + 1);
  const Tensor source_rows = staging_.put(source_rows_, DType::kInt32, max_sequences_ + 1);
  adapter_data_ = {.adapters = adapters_,
                   .tokens = token_groups_.staged_batch(staging_, max_tokens_),
                   .logits = logit_groups_.staged_batch(staging_, max_tokens_)};
  // Last, since it alone is much larger than what a step uses of it.
  const Tensor block_tables = staging_.put(block_tables_, DType::kInt32, max_block_entries_);
  staging_.flush(ctx.stream);
  if (!source_rows_.empty()) ops::take_sampled(ctx, previous_samples, source_rows, input_ids);
  const bool all_decode = seqlen_.num_decode == seqlen_.num_sequences();
  return {.input_ids = input_ids,
          .position_ids = position_ids,
          .cu_seqlen_prefill = all_decode ? Tensor() : seqlen_.cu_query,
          .kv_cache = kv_cache,
          .block_tables = block_tables.reshape({seqlen_.num_sequences(), max_blocks_}),
          .slots = slots,
          .seqlen = seqlen_,
          .max_s = max_s_,
          .adapter_data = adapter_data_,
          .prefill_cache_indices = Tensor(),
          .lm_head_indices = lm_head_indices,
          .skip_lm_head = wants_hidden_};
}

}  // namespace shoal
