#include "ops/sampling_test_util.h"

#include <algorithm>

#include "ops/op_test_util.h"

namespace shoal {
namespace {

template <typename T>
Tensor view_of(std::vector<T>& values, DType dtype) {
  return {values.data(), dtype, {std::ssize(values)}};
}

// The per-row arrays that the op takes.
struct Columns {
  std::vector<std::uint8_t> greedy;
  std::vector<float> temperature, top_p, typical_p, min_p, repetition, frequency, presence;
  std::vector<std::int32_t> top_k, position, count_slot, mask_slot;
  std::vector<std::int64_t> seed;
  std::vector<std::int32_t> counts;  // [slots, vocab]
  std::vector<std::int32_t> mask;    // [slots, ceil(vocab / 32)]

  void add(const SamplingRow& row, std::int64_t vocab) {
    greedy.push_back(row.greedy ? 1 : 0);
    temperature.push_back(row.temperature);
    top_p.push_back(row.top_p);
    typical_p.push_back(row.typical_p);
    min_p.push_back(row.min_p);
    repetition.push_back(row.repetition_penalty);
    frequency.push_back(row.frequency_penalty);
    presence.push_back(row.presence_penalty);
    top_k.push_back(row.top_k);
    position.push_back(row.position);
    seed.push_back(row.seed);
    count_slot.push_back(row.counts.empty() ? -1 : static_cast<std::int32_t>(std::ssize(counts) / vocab));
    counts.insert(counts.end(), row.counts.begin(), row.counts.end());
    const std::int64_t words = (vocab + 31) / 32;
    const bool masked = row.allowed.empty() || row.allowed[0] >= 0;
    mask_slot.push_back(masked ? static_cast<std::int32_t>(std::ssize(mask) / words) : -1);
    if (masked) add_mask(row.allowed, words);
  }

  void add_mask(const std::vector<std::int64_t>& allowed, std::int64_t num_words) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(num_words), 0U);
    for (const std::int64_t id : allowed) words[static_cast<std::size_t>(id / 32)] |= 1U << (id % 32);
    for (const std::uint32_t word : words) mask.push_back(static_cast<std::int32_t>(word));
  }
};

}  // namespace

std::vector<Sampled> sample_rows(Context& ctx, const std::vector<SamplingRow>& rows, std::int64_t padding, Kept kept) {
  const auto num_rows = std::ssize(rows);
  const std::int64_t vocab = num_rows == 0 ? 1 : std::ssize(rows[0].logits);
  const std::int64_t words = (vocab + 31) / 32;
  HostTensor logits(DType::kFloat32, {num_rows, vocab + padding});
  Columns columns;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const SamplingRow& row = rows[static_cast<std::size_t>(r)];
    CHECK_EQ(std::ssize(row.logits), vocab);
    std::fill_n(logits.view().row<float>(r), vocab + padding, 1e9F);
    std::copy(row.logits.begin(), row.logits.end(), logits.view().row<float>(r));
    columns.add(row, vocab);
  }
  HostTensor token(DType::kInt64, {num_rows});
  HostTensor logprob(DType::kFloat32, {num_rows});
  const std::int64_t count_slots = std::ssize(columns.counts) / vocab;
  const std::int64_t mask_slots = std::ssize(columns.mask) / words;
  ops::sample(
      ctx,
      {.logits = logits,
       .vocab = vocab,
       .greedy = view_of(columns.greedy, DType::kUInt8),
       .temperature = view_of(columns.temperature, DType::kFloat32),
       .top_k = view_of(columns.top_k, DType::kInt32),
       .top_p = view_of(columns.top_p, DType::kFloat32),
       .typical_p = view_of(columns.typical_p, DType::kFloat32),
       .min_p = view_of(columns.min_p, DType::kFloat32),
       .repetition_penalty = view_of(columns.repetition, DType::kFloat32),
       .frequency_penalty = view_of(columns.frequency, DType::kFloat32),
       .presence_penalty = view_of(columns.presence, DType::kFloat32),
       .seed = view_of(columns.seed, DType::kInt64),
       .position = view_of(columns.position, DType::kInt32),
       .count_slot = view_of(columns.count_slot, DType::kInt32),
       .token_counts = count_slots > 0 ? Tensor(columns.counts.data(), DType::kInt32, {count_slots, vocab}) : Tensor(),
       .mask_slot = view_of(columns.mask_slot, DType::kInt32),
       .mask = mask_slots > 0 ? Tensor(columns.mask.data(), DType::kInt32, {mask_slots, words}) : Tensor(),
       .leave_kept = kept == Kept::kLeave},
      {.token = token, .logprob = logprob});
  std::vector<Sampled> sampled;
  sampled.reserve(static_cast<std::size_t>(num_rows));
  for (std::int64_t r = 0; r < num_rows; ++r) {
    sampled.push_back({.token = token.view().data<std::int64_t>()[r], .logprob = logprob.view().data<float>()[r]});
    const float* left = logits.view().row<float>(r);
    if (kept == Kept::kLeave) sampled.back().kept.assign(left, left + vocab);
  }
  return sampled;
}

}  // namespace shoal
