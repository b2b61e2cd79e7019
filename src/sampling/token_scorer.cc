#include "sampling/token_scorer.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr std::int64_t kColumns = 4;  // four bytes each, beside the largest

std::int64_t result_bytes(std::int64_t rows, std::int64_t num_top) { return rows * (kColumns + 2 * num_top) * 4; }

}  // namespace

void TokenScorer::prepare(std::int64_t rows, std::int64_t num_top) {
  CHECK_LE(rows, max_rows_);
  CHECK_LE(num_top, kMostTopLogits);
  rows_ = rows;
  num_top_ = num_top <= 1 ? num_top : num_top <= 5 ? 5 : kMostTopLogits;
  if (host_results_.num_bytes() > 0) return;
  const std::int64_t most_bytes = result_bytes(max_rows_, kMostTopLogits);
  host_results_ = Buffer(backend_.staging_allocator(), most_bytes);
  if (backend_.device() != DeviceKind::kCpu) device_results_ = Buffer(backend_.allocator(), most_bytes);
}

RankingOutput TokenScorer::output_in(const Buffer& results) const {
  const std::int64_t column_bytes = rows_ * 4;
  const std::int64_t top_bytes = rows_ * num_top_ * 4;
  return {.token_logit = results.view(DType::kFloat32, {rows_}),
          .rank = results.view(DType::kInt32, {rows_}, column_bytes),
          .largest = results.view(DType::kFloat32, {rows_}, 2 * column_bytes),
          .log_sum = results.view(DType::kFloat32, {rows_}, 3 * column_bytes),
          .top_ids = results.view(DType::kInt32, {rows_, num_top_}, kColumns * column_bytes),
          .top_logits = results.view(DType::kFloat32, {rows_, num_top_}, kColumns * column_bytes + top_bytes)};
}

void TokenScorer::rank(Context& ctx, const Tensor& logits, const Tensor& tokens) const {
  ops::rank_logits(ctx, logits, columns_, tokens, output_in(device_results()));
}

void TokenScorer::download(Stream stream) const {
  if (backend_.device() == DeviceKind::kCpu) return;
  const std::int64_t num_bytes = result_bytes(rows_, num_top_);
  backend_.download(stream, device_results_.view(DType::kUInt8, {num_bytes}),
                    host_results_.view(DType::kUInt8, {num_bytes}));
}

TokenScore TokenScorer::model_score(std::int64_t row, std::int64_t num_top) const {
  const RankingOutput results = output_in(host_results_);
  // One expression for the token and for the largest, so that a token which is one of them has its bits.
  const auto logprob = [&](float logit) {
    return (logit - results.largest.data<float>()[row]) - results.log_sum.data<float>()[row];
  };
  TokenScore score{.logprob = logprob(results.token_logit.data<float>()[row]),
                   .rank = results.rank.data<std::int32_t>()[row]};
  for (std::int64_t i = 0; i < std::min(num_top, num_top_); ++i) {
    const std::int64_t id = results.top_ids.row<std::int32_t>(row)[i];
    if (id >= 0) score.top.push_back({.id = id, .logprob = logprob(results.top_logits.row<float>(row)[i])});
  }
  return score;
}

TokenScore TokenScorer::sampled_score(std::int64_t row, std::int64_t num_top, const SamplingParams& params,
                                      float logprob) const {
  const RankingOutput results = output_in(host_results_);
  const float chosen = results.token_logit.data<float>()[row];
  const float temperature = params.greedy ? 1.0F : params.temperature;
  TokenScore score{.logprob = logprob, .rank = results.rank.data<std::int32_t>()[row]};
  for (std::int64_t i = 0; i < std::min(num_top, num_top_); ++i) {
    const std::int64_t id = results.top_ids.row<std::int32_t>(row)[i];
    if (id < 0) continue;
    const float logit = results.top_logits.row<float>(row)[i];
    score.top.push_back({.id = id, .logprob = logprob + (logit - chosen) / temperature});
  }
  return score;
}

}  // namespace shoal
