#include "sampling/sampler.h"

#include <algorithm>
#include <bit>

#include "ops/sampling.h"

namespace shoal {
namespace {

constexpr std::int64_t kArrays = 16;
constexpr std::int64_t kBytesPerRow = 69;  // of all arrays
constexpr std::int64_t kResultBytesPerRow = sizeof(std::int64_t) + sizeof(float);

// Tokens, then logprobs, of `rows` rows.
Tensor tokens_in(const Buffer& results, std::int64_t rows) { return results.view(DType::kInt64, {rows}); }
Tensor logprobs_in(const Buffer& results, std::int64_t rows) {
  return results.view(DType::kFloat32, {rows}, rows * static_cast<std::int64_t>(sizeof(std::int64_t)));
}

}  // namespace

Sampler::Sampler(const Backend& backend, const RankedColumns& columns, std::int64_t max_sequences)
    : backend_(backend),
      vocab_limit_(columns.ranked),
      max_sequences_(max_sequences),
      staging_(backend, max_sequences * kBytesPerRow + kArrays * Staging::kAlignment),
      model_scorer_(backend, columns, max_sequences),
      sampled_scorer_(backend, columns, max_sequences) {
  for (Buffer& results : host_results_) {
    results = Buffer(backend.staging_allocator(), max_sequences * kResultBytesPerRow);
  }
  if (backend.device() != DeviceKind::kCpu) {
    device_results_ = Buffer(backend.allocator(), max_sequences * kResultBytesPerRow);
  }
  device_tokens_ = tokens_in(device_results(), 0);
  const auto rows = static_cast<std::size_t>(max_sequences);
  for (std::vector<float>* values :
       {&temperature_, &top_p_, &typical_p_, &min_p_, &repetition_, &frequency_, &presence_}) {
    values->reserve(rows);
  }
  for (std::vector<std::int32_t>* values : {&top_k_, &position_, &count_slot_, &mask_slot_}) values->reserve(rows);
  seed_.reserve(rows);
  after_.reserve(rows);
  gamma_.reserve(rows);
  delta_.reserve(rows);
  greedy_.reserve(rows);
}

void Sampler::start_counts(Context& ctx, std::int32_t state_slot, std::span<const std::int64_t> history,
                           std::int64_t prompt_length) {
  if (!token_counts_.defined()) {
    counts_storage_ = Buffer(backend_.allocator(), max_sequences_ * vocab_limit_ * dtype_bytes(DType::kInt32));
    token_counts_ = counts_storage_.view(DType::kInt32, {max_sequences_, vocab_limit_});
  }
  const Arena::Scope scope(ctx.arena);
  const auto length = static_cast<std::int64_t>(history.size());
  // Ops only read it; Tensor has no const form.
  Tensor ids(const_cast<std::int64_t*>(history.data()), DType::kInt64, {length});
  if (backend_.device() != DeviceKind::kCpu) {
    const Tensor on_device = ctx.arena.take(DType::kInt64, {length});
    backend_.copy_to_device(ids, on_device);  // once a sequence with penalties: it may wait
    ids = on_device;
  }
  ops::count_history(ctx, ids, prompt_length, token_counts_.rows(state_slot, 1).reshape({vocab_limit_}));
}

void Sampler::fill_arrays(std::span<const SampleRow> rows) {
  const std::size_t n = rows.size();
  greedy_.resize(n);
  for (std::vector<float>* values :
       {&temperature_, &top_p_, &typical_p_, &min_p_, &repetition_, &frequency_, &presence_}) {
    values->resize(n);
  }
  for (std::vector<std::int32_t>* values : {&top_k_, &position_, &count_slot_, &mask_slot_}) values->resize(n);
  seed_.resize(n);
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
    mask_slot_[i] = rows[i].mask_row;
  }
}

// [mask rows, ceil(vocab_limit / 32)] int32, undefined where there are none.
Tensor Sampler::stage_masks(Stream stream, const std::vector<std::int32_t>& mask_words) {
  if (mask_words.empty()) return {};
  const std::int64_t words_each = (vocab_limit_ + 31) / 32;
  const std::int64_t capacity = max_sequences_ * words_each;
  if (!mask_staging_) mask_staging_.emplace(backend_, capacity * dtype_bytes(DType::kInt32) + Staging::kAlignment);
  mask_staging_->begin();
  const Tensor masks = mask_staging_->put(mask_words, DType::kInt32, static_cast<std::size_t>(capacity));
  mask_staging_->flush(stream);
  return masks.reshape({static_cast<std::int64_t>(mask_words.size()) / words_each, words_each});
}

void Sampler::prepare(Stream stream, std::span<const SampleRow> rows, const std::vector<std::int32_t>& mask_words) {
  fill_arrays(rows);
  const auto capacity = static_cast<std::size_t>(max_sequences_);
  staging_.begin();
  input_ = {.logits = Tensor(),
            .vocab = vocab_limit_,
            .greedy = staging_.put(greedy_, DType::kUInt8, capacity),
            .temperature = staging_.put(temperature_, DType::kFloat32, capacity),
            .top_k = staging_.put(top_k_, DType::kInt32, capacity),
            .top_p = staging_.put(top_p_, DType::kFloat32, capacity),
            .typical_p = staging_.put(typical_p_, DType::kFloat32, capacity),
            .min_p = staging_.put(min_p_, DType::kFloat32, capacity),
            .repetition_penalty = staging_.put(repetition_, DType::kFloat32, capacity),
            .frequency_penalty = staging_.put(frequency_, DType::kFloat32, capacity),
            .presence_penalty = staging_.put(presence_, DType::kFloat32, capacity),
            .seed = staging_.put(seed_, DType::kInt64, capacity),
            .position = staging_.put(position_, DType::kInt32, capacity),
            .count_slot = staging_.put(count_slot_, DType::kInt32, capacity),
            .token_counts = token_counts_,
            .mask_slot = staging_.put(mask_slot_, DType::kInt32, capacity),
            .mask = stage_masks(stream, mask_words),
            .leave_kept = false};
  prepare_watermarks(rows);
  staging_.flush(stream);
  prepare_biases(stream, rows);
  prepare_scores(rows);
  input_.leave_kept = sampled_scorer_.is_prepared();
  turn_ = 1 - turn_;
  device_tokens_ = tokens_in(device_results(), std::ssize(rows));
  device_logprobs_ = logprobs_in(device_results(), std::ssize(rows));
}

// Behind the arrays of all steps, which stay where captured graphs read them.
void Sampler::prepare_watermarks(std::span<const SampleRow> rows) {
  watermark_ = {};
  const auto has_one = [](const SampleRow& row) { return row.params.has_watermark(); };
  if (std::none_of(rows.begin(), rows.end(), has_one)) return;
  after_.clear();
  gamma_.clear();
  delta_.clear();
  for (const SampleRow& row : rows) {
    after_.push_back(has_one(row) ? row.after : -1);
    gamma_.push_back(row.params.watermark_gamma);
    delta_.push_back(row.params.watermark_delta);
  }
  const auto capacity = static_cast<std::size_t>(max_sequences_);
  watermark_ = {.ids = Tensor(),
                .after = staging_.put(after_, DType::kInt64, capacity),
                .gamma = staging_.put(gamma_, DType::kFloat32, capacity),
                .delta = staging_.put(delta_, DType::kFloat32, capacity)};
}

void Sampler::prepare_biases(Stream stream, std::span<const SampleRow> rows) {
  constexpr std::int64_t kLeastCapacity = 1024;
  bias_begin_.assign(1, 0);
  biases_.clear();
  for (const SampleRow& row : rows) {
    biases_.insert(biases_.end(), row.biases.begin(), row.biases.end());
    bias_begin_.push_back(static_cast<std::int32_t>(biases_.size()));
  }
  if (biases_.empty()) return;
  if (std::ssize(biases_) > bias_capacity_) {
    bias_capacity_ = std::max(kLeastCapacity, static_cast<std::int64_t>(std::bit_ceil(biases_.size())));
    const auto bias_bytes = bias_capacity_ * static_cast<std::int64_t>(sizeof(LogitBias));
    bias_staging_.emplace(backend_, (max_sequences_ + 1) * 4 + bias_bytes + 2 * Staging::kAlignment);
  }
  bias_staging_->begin();
  bias_begin_on_device_ = bias_staging_->put(bias_begin_, DType::kInt32, static_cast<std::size_t>(max_sequences_ + 1));
  biases_on_device_ = bias_staging_->put_structs(biases_, static_cast<std::size_t>(bias_capacity_));
  bias_staging_->flush(stream);
}

void Sampler::prepare_scores(std::span<const SampleRow> rows) {
  for (const ScoreKind kind : {ScoreKind::kModel, ScoreKind::kSampled}) {
    TokenScorer& scorer = kind == ScoreKind::kModel ? model_scorer_ : sampled_scorer_;
    std::int64_t num_top = -1;
    for (const SampleRow& row : rows) {
      if (row.score == kind) num_top = std::max<std::int64_t>(num_top, row.num_top);
    }
    if (num_top < 0) {
      scorer.prepare_none();
    } else {
      scorer.prepare(std::ssize(rows), num_top);
    }
  }
}

SamplerShape Sampler::shape() const {
  return {.counts = has_counts(),
          .masks = input_.mask.defined(),
          .watermarks = watermark_.after.defined(),
          .bias_capacity = biases_.empty() ? 0 : bias_capacity_,
          .model_top = model_scorer_.is_prepared() ? model_scorer_.num_top() : -1,
          .sampled_top = sampled_scorer_.is_prepared() ? sampled_scorer_.num_top() : -1};
}

TokenScore Sampler::score(const SampleResults& results, const SampleRow& row, std::int64_t index) const {
  if (row.score == ScoreKind::kModel) return model_scorer_.model_score(results.model_scores, index, row.num_top);
  CHECK(row.score == ScoreKind::kSampled);
  return sampled_scorer_.sampled_score(results.sampled_scores, index, row.num_top, row.params,
                                       results.logprobs.data<float>()[index]);
}

void Sampler::sample(Context& ctx, const Tensor& logits, const Tensor& input_ids) {
  const std::int64_t num_rows = device_tokens_.dim(0);
  CHECK_EQ(logits.dim(0), num_rows);
  input_.logits = logits;
  Tensor model_logits;
  if (model_scorer_.is_prepared()) {
    model_logits = ctx.arena.take(DType::kFloat32, {num_rows, logits.dim(1)});
    backend_.copy(ctx.stream, logits, model_logits);
  }
  if (!biases_.empty()) ops::add_biases(ctx, bias_begin_on_device_, biases_on_device_, logits);
  if (watermark_.after.defined()) {
    watermark_.ids = input_ids;
    ops::add_watermark(ctx, watermark_, logits);
  }
  ops::sample(ctx, input_, {.token = device_tokens_, .logprob = device_logprobs_});
  if (model_scorer_.is_prepared()) model_scorer_.rank(ctx, model_logits, device_tokens_);
  if (sampled_scorer_.is_prepared()) sampled_scorer_.rank(ctx, logits, device_tokens_);
  if (has_counts()) ops::count_sampled(ctx, device_tokens_, input_.count_slot, token_counts_);
}

SampleResults Sampler::download(Stream stream) {
  const std::int64_t num_rows = device_tokens_.dim(0);
  const Buffer& host = host_results_[turn_];
  if (backend_.device() != DeviceKind::kCpu && num_rows > 0) {
    const std::int64_t num_bytes = num_rows * kResultBytesPerRow;
    backend_.download(stream, device_results_.view(DType::kUInt8, {num_bytes}), host.view(DType::kUInt8, {num_bytes}));
    for (const TokenScorer* scorer : {&model_scorer_, &sampled_scorer_}) {
      if (scorer->is_prepared()) scorer->download(stream);
    }
  }
  return {.tokens = tokens_in(host, num_rows),
          .logprobs = logprobs_in(host, num_rows),
          .model_scores = model_scorer_.shape(),
          .sampled_scores = sampled_scorer_.shape()};
}

}  // namespace shoal
