#include "sampling/sampler.h"

#include <algorithm>
#include <bit>

#include "ops/sampling.h"

namespace shoal {
namespace {

template <typename T>
Tensor view_of(std::vector<T>& values, DType dtype) {
  return {values.data(), dtype, {static_cast<std::int64_t>(values.size())}};
}

}  // namespace

Sampler::Sampler(const Backend& backend, std::int64_t vocab_limit, std::int64_t max_sequences)
    : vocab_limit_(vocab_limit), allocator_(backend.allocator()), max_sequences_(max_sequences) {
  const auto rows = static_cast<std::size_t>(max_sequences);
  for (std::vector<float>* values :
       {&temperature_, &top_p_, &typical_p_, &min_p_, &repetition_, &frequency_, &presence_, &logprobs_}) {
    values->reserve(rows);
  }
  for (std::vector<std::int32_t>* values : {&top_k_, &position_, &count_slot_, &mask_slot_}) values->reserve(rows);
  for (std::vector<std::int64_t>* values : {&seed_, &tokens_}) values->reserve(rows);
  greedy_.reserve(rows);
}

void Sampler::start_counts(std::int32_t state_slot, std::span<const std::int64_t> history, std::int64_t prompt_length) {
  if (!token_counts_.defined()) {
    counts_storage_ = Buffer(allocator_, max_sequences_ * vocab_limit_ * dtype_bytes(DType::kInt32));
    token_counts_ = counts_storage_.view(DType::kInt32, {max_sequences_, vocab_limit_});
  }
  auto* counts = token_counts_.row<std::int32_t>(state_slot);
  std::fill(counts, counts + vocab_limit_, 0);
  for (std::size_t i = 0; i < history.size(); ++i) {
    if (history[i] >= vocab_limit_) continue;  // never sampled, so nothing to penalise
    if (static_cast<std::int64_t>(i) < prompt_length) {
      counts[history[i]] |= kSeenInPrompt;
    } else {
      ++counts[history[i]];
    }
  }
}

void Sampler::fill_arrays(std::span<const SampleRow> rows) {
  const std::size_t n = rows.size();
  greedy_.resize(n);
  for (std::vector<float>* values :
       {&temperature_, &top_p_, &typical_p_, &min_p_, &repetition_, &frequency_, &presence_, &logprobs_}) {
    values->resize(n);
  }
  for (std::vector<std::int32_t>* values : {&top_k_, &position_, &count_slot_, &mask_slot_}) values->resize(n);
  for (std::vector<std::int64_t>* values : {&seed_, &tokens_}) values->resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const SamplingParams& params = rows[i].params;
    greedy_[i] = params.greedy ? 1 : 0;
    temperature_[i] = params.temperature;
    top_k_[i] = params.top_k;
    top_p_[i] = params.top_p;
    typical_p_[i] = params.typical_p;
    min_p_[i] = params.min_p;
    repetition_[i] = params.repetition_penalty;
    frequency_[i] = params.frequency_penalty;
    presence_[i] = params.presence_penalty;
    seed_[i] = std::bit_cast<std::int64_t>(params.seed);
    position_[i] = rows[i].position;
    count_slot_[i] = params.has_penalties() ? rows[i].state_slot : -1;
    mask_slot_[i] = -1;
  }
}

void Sampler::sample(Context& ctx, const Tensor& logits, std::span<const SampleRow> rows) {
  fill_arrays(rows);
  const SamplingInput in{.logits = logits,
                         .vocab = vocab_limit_,
                         .greedy = view_of(greedy_, DType::kUInt8),
                         .temperature = view_of(temperature_, DType::kFloat32),
                         .top_k = view_of(top_k_, DType::kInt32),
                         .top_p = view_of(top_p_, DType::kFloat32),
                         .typical_p = view_of(typical_p_, DType::kFloat32),
                         .min_p = view_of(min_p_, DType::kFloat32),
                         .repetition_penalty = view_of(repetition_, DType::kFloat32),
                         .frequency_penalty = view_of(frequency_, DType::kFloat32),
                         .presence_penalty = view_of(presence_, DType::kFloat32),
                         .seed = view_of(seed_, DType::kInt64),
                         .position = view_of(position_, DType::kInt32),
                         .count_slot = view_of(count_slot_, DType::kInt32),
                         .token_counts = token_counts_,
                         .mask_slot = view_of(mask_slot_, DType::kInt32),
                         .mask = Tensor()};
  ops::sample(ctx, in, {.token = view_of(tokens_, DType::kInt64), .logprob = view_of(logprobs_, DType::kFloat32)});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (count_slot_[i] >= 0 && tokens_[i] >= 0) ++token_counts_.row<std::int32_t>(count_slot_[i])[tokens_[i]];
  }
}

}  // namespace shoal
