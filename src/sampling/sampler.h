// Sampler: a plan's sampling parameters as per-row arrays, the penalty counts of running sequences, and the one
// sampling op. Owned by the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "ops/backend.h"
#include "ops/sampling.h"
#include "ops/staging.h"
#include "sampling/sampling_params.h"

namespace shoal {

// One logits row to sample.
struct SampleRow {
  SamplingParams params;
  std::int32_t position = 0;    // of the token that is sampled: with the seed, its whole random stream
  std::int32_t state_slot = 0;  // whose penalty counts
  std::int32_t mask_row = -1;   // of the masks; -1: any token may be sampled
};

class Sampler {
 public:
  // `vocab_limit`: ids at or past it are never sampled; the logits may be wider. `backend` outlives this.
  Sampler(const Backend& backend, std::int64_t vocab_limit, std::int64_t max_sequences);

  // Starts the counts of a sequence with penalties: `history` is its prompt and, after a preemption, its output.
  void start_counts(Context& ctx, std::int32_t state_slot, std::span<const std::int64_t> history,
                    std::int64_t prompt_length);

  // A step in three parts, of which the middle one queues kernels alone and can be captured. First the parameters of
  // these rows on their way to the device. `mask_words` [mask rows, ceil(vocab_limit / 32)] stay until collect().
  void prepare(Stream stream, std::span<const SampleRow> rows, const std::vector<std::int32_t>& mask_words);
  // One token a prepared row: logits float32 [rows, width of the vocabulary], overwritten. Counts what it sampled.
  void sample(Context& ctx, const Tensor& logits);
  // Waits for the device. The results stay valid until the next prepare(); a token of -1 means that the row's logits
  // held no usable number.
  void collect(Stream stream);
  bool has_counts() const { return token_counts_.defined(); }
  bool has_masks() const { return input_.mask.defined(); }  // of the prepared rows

  std::span<const std::int64_t> tokens() const { return host_tokens_.span<std::int64_t>(); }
  std::span<const float> logprobs() const { return host_logprobs_.span<float>(); }

 private:
  void fill_arrays(std::span<const SampleRow> rows);
  Tensor stage_masks(Stream stream, const std::vector<std::int32_t>& mask_words);

  const Backend& backend_;
  std::int64_t vocab_limit_;
  Buffer counts_storage_;
  Tensor token_counts_;  // i32 [max_sequences, vocab_limit]; made when the first sequence with penalties comes
  std::int64_t max_sequences_;

  // By row, reused from step to step.
  std::vector<std::uint8_t> greedy_;
  std::vector<float> temperature_, top_p_, typical_p_, min_p_, repetition_, frequency_, presence_;
  std::vector<std::int32_t> top_k_, position_, count_slot_, mask_slot_;
  std::vector<std::int64_t> seed_;
  Staging staging_;
  std::optional<Staging> mask_staging_;  // made when the first row with a mask comes
  SamplingInput input_;                  // of the prepared rows, but for the logits
  Buffer host_results_;                  // a token, then a logprob, for each row
  Buffer device_results_;                // none where the device is the host
  Tensor host_tokens_, host_logprobs_;
};

}  // namespace shoal
