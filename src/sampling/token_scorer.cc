#include "sampling/token_scorer.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr std::int64_t kColumns = 4;  // four bytes each, beside the largest

std::int64_t result_bytes(std::int64_t rows, std::int64_t num_top) { return rows * (kColumns + 2 * num_top) * 4; }

RankingOutput output_in(const Buffer& results, const TokenScorer::Shape& shape) {
  const std::int64_t rows = shape.rows;
  const std::int64_t column_bytes = rows * 4;
  const std::int64_t top_bytes = rows * shape.num_top * 4;
  return {.token_logit = results.view(DType::kFloat32, {rows}),
          .rank = results.view(DType::kInt32, {rows}, column_bytes),
          .largest = results.view(DType::kFloat32, {rows}, 2 * column_bytes),
          .log_sum = results.view(DType::kFloat32, {rows}, 3 * column_bytes),
          .top_ids = results.view(DType::kInt32, {rows, shape.num_top}, kColumns * column_bytes),
          .top_logits = results.view(DType::kFloat32, {rows, shape.num_top}, kColumns * column_bytes + top_bytes)};
}

}  // namespace

void TokenScorer::prepare(std::int64_t rows, std::int64_t num_top) {
  CHECK_LE(rows, max_rows_);
  CHECK_LE(num_top, kMostTopLogits);
  shape_ = {.rows = rows,
            .num_top = num_top <= 1   ? num_top
                       : num_top <= 5 ? 5
                                      : kMostTopLogits,
            .place = 1 - shape_.place};
  if (host_results_[0].num_bytes() > 0) return;
  const std::int64_t most_bytes = result_bytes(max_rows_, kMostTopLogits);
  for (Buffer& results : host_results_) results = Buffer(backend_.staging_allocator(), most_bytes);
  if (backend_.device() != DeviceKind::kCpu) device_results_ = Buffer(backend_.allocator(), most_bytes);
}

void TokenScorer::rank(Context& ctx, const Tensor& logits, const Tensor& tokens) const {
  ops::rank_logits(ctx, logits, columns_, tokens, output_in(device_results(), shape_));
}

void TokenScorer::download(Stream stream) const {
  if (backend_.device() == DeviceKind::kCpu) return;
  const std::int64_t num_bytes = result_bytes(shape_.rows, shape_.num_top);
  backend_.download(stream, device_results_.view(DType::kUInt8, {num_bytes}),
                    host_results_[shape_.place].view(DType::kUInt8, {num_bytes}));
}

TokenScore TokenScorer::model_score(const Shape& shape, std::int64_t row, std::int64_t num_top) const {
  const RankingOutput results = output_in(host_results_[shape.place], shape);
  // One expression for the token and for the largest, so that a token which is one of them has its bits.
  const auto logprob = [&](float logit) {
    return (logit - results.largest.data<float>()[row]) - results.log_sum.data<float>()[row];
  };
  TokenScore score{.logprob = logprob(results.token_logit.data<float>()[row]),
                   .rank = results.rank.data<std::int32_t>()[row]};
  for (std::int64_t i = 0; i < std::min(num_top, shape.num_top); ++i) {
    const std::int64_t id = results.top_ids.row<std::int32_t>(row)[i];
    if (id >= 0) score.top.push_back({.id = id, .logprob = logprob(results.top_logits.row<float>(row)[i])});
  }
  return score;
}

TokenScore TokenScorer::sampled_score(const Shape& shape, std::int64_t row, std::int64_t num_top,
                                      const SamplingParams& params, float logprob) const {
  const RankingOutput results = output_in(host_results_[shape.place], shape);
  const float chosen = results.token_logit.data<float>()[row];
  const float temperature = params.greedy ? 1.0F : params.temperature;
  TokenScore score{.logprob = logprob, .rank = results.rank.data<std::int32_t>()[row]};
  for (std::int64_t i = 0; i < std::min(num_top, shape.num_top); ++i) {
    const std::int64_t id = results.top_ids.row<std::int32_t>(row)[i];
    if (id < 0) continue;
    const float logit = results.top_logits.row<float>(row)[i];
    score.top.push_back({.id = id, .logprob = logprob + (logit - chosen) / temperature});
  }
  return score;
}

}  // namespace shoal
