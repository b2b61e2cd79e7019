// Sampler: a plan's sampling parameters as per-row arrays, the penalty counts of running sequences, and the one
// sampling op. Owned by the engine.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "ops/backend.h"
#include "ops/sampling.h"
#include "ops/staging.h"
#include "ops/watermark.h"
#include "sampling/sampling_params.h"
#include "sampling/token_scorer.h"

namespace shoal {

// One logits row to sample.
struct SampleRow {
  SamplingParams params;
  std::int32_t position = 0;               // of the token that is sampled: with the seed, its whole random stream
  std::int32_t state_slot = 0;             // whose penalty counts
  std::int32_t mask_row = -1;              // of the masks; -1: any token may be sampled
  std::span<const LogitBias> biases = {};  // no id twice
  ScoreKind score = ScoreKind::kNone;
  std::int32_t num_top = 0;  // likeliest tokens that come with the score
  std::int64_t after = -1;   // index in the step's input ids of the token before the sampled one; for a watermark
};

// All that decides which kernels sample() queues, and on which memory, beside the number of rows.
struct SamplerShape {
  bool counts = false;
  bool masks = false;              // some row has a mask
  bool watermarks = false;         // some row has one
  std::int64_t bias_capacity = 0;  // 0: no biases in this step
  std::int64_t model_top = -1;     // likeliest tokens that are looked for; -1: no scores of this kind
  std::int64_t sampled_top = -1;

  auto operator<=>(const SamplerShape&) const = default;
};

// One step's, on the host. They stay until the next prepare() but one: a step may follow before they are read.
struct SampleResults {
  Tensor tokens;    // i64 [rows] -1: the row's logits held no usable number
  Tensor logprobs;  // f32 [rows]
  TokenScorer::Shape model_scores, sampled_scores;
};

class Sampler {
 public:
  // Ids at or past columns.ranked are never sampled; those below columns.summed take part in the model's scores. The
  // logits may be wider. `backend` outlives this.
  Sampler(const Backend& backend, const RankedColumns& columns, std::int64_t max_sequences);

  // Starts the counts of a sequence with penalties: `history` is its prompt and, after a preemption, its output.
  void start_counts(Context& ctx, std::int32_t state_slot, std::span<const std::int64_t> history,
                    std::int64_t prompt_length);

  // A step in three parts, of which the middle one queues kernels alone and can be captured. First the parameters of
  // these rows on their way to the device. `mask_words` [mask rows, ceil(vocab_limit / 32)] stay until the step ended.
  void prepare(Stream stream, std::span<const SampleRow> rows, const std::vector<std::int32_t>& mask_words);
  // One token a prepared row: logits float32 [rows, width of the vocabulary], overwritten. Counts what it sampled.
  // input_ids i64 [tokens] are the step's, on the device.
  void sample(Context& ctx, const Tensor& logits, const Tensor& input_ids);
  // Queues the results' way to the host, where they are read once the stream has passed.
  SampleResults download(Stream stream);
  SamplerShape shape() const;

  // The sampled tokens i64 [rows] on the device, until the next prepare().
  const Tensor& device_tokens() const { return device_tokens_; }
  // Of a row that asked for one.
  TokenScore score(const SampleResults& results, const SampleRow& row, std::int64_t index) const;

 private:
  bool has_counts() const { return token_counts_.defined(); }
  const Buffer& device_results() const {
    return backend_.device() == DeviceKind::kCpu ? host_results_[turn_] : device_results_;
  }
  void fill_arrays(std::span<const SampleRow> rows);
  void prepare_watermarks(std::span<const SampleRow> rows);
  void prepare_biases(Stream stream, std::span<const SampleRow> rows);
  void prepare_scores(std::span<const SampleRow> rows);
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
  // Of watermarks; empty where no row has one.
  std::vector<std::int64_t> after_;
  std::vector<float> gamma_, delta_;
  Staging staging_;
  // Biases of the prepared rows; memory for them is taken when the first come.
  std::vector<std::int32_t> bias_begin_;  // [rows + 1]
  std::vector<LogitBias> biases_;
  std::int64_t bias_capacity_ = 0;
  std::optional<Staging> bias_staging_;
  Tensor bias_begin_on_device_, biases_on_device_;
  std::optional<Staging> mask_staging_;  // made when the first row with a mask comes
  TokenScorer model_scorer_, sampled_scorer_;
  SamplingInput input_;       // of the prepared rows, but for the logits
  WatermarkInput watermark_;  // the same, but for the ids; undefined tensors where no row has one
  // A token, then a logprob, for each row.
  std::array<Buffer, 2> host_results_;  // steps take them in turns
  Buffer device_results_;               // none where the device is the host
  std::size_t turn_ = 0;
  Tensor device_tokens_, device_logprobs_;  // of the prepared rows
};

}  // namespace shoal
