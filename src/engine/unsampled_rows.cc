#include "engine/unsampled_rows.h"

#include <algorithm>
#include <span>

#include "core/check.h"
#include "ops/elementwise.h"
#include "weights/tensor_values.h"

namespace shoal {

void UnsampledRows::prepare(const StepPlan& plan, Stream stream) {
  targets_.clear();
  sampled_indices_.clear();
  embedded_.clear();
  embedded_rows_.clear();
  const bool scores = !plan.target_ids.empty();
  const auto embeds = [](const PlanSequence& sequence) { return sequence.embed; };
  if (!scores && std::none_of(plan.sequences.begin(), plan.sequences.end(), embeds)) return;
  std::int64_t num_rows = 0;
  std::int64_t num_top = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& sequence = plan.sequences[i];
    CHECK_LE(sequence.scored_rows, sequence.logit_rows);
    for (std::int32_t row = 0; row < sequence.logit_rows; ++row, ++num_rows) {
      const bool is_scored = row < sequence.scored_rows;
      if (scores) {
        targets_.push_back(is_scored ? plan.target_ids[static_cast<std::size_t>(sequence.target_begin + row)] : -1);
      }
      if (is_scored) continue;
      if (sequence.embed) {
        embedded_.push_back(static_cast<std::int32_t>(i));
        embedded_rows_.push_back(num_rows);
      } else {
        sampled_indices_.push_back(num_rows);
      }
    }
    if (sequence.scored_rows > 0) num_top = std::max<std::int64_t>(num_top, sequence.target_top);
  }
  if (!staging_) staging_.emplace(backend_, 2 * (max_rows_ * 8 + Staging::kAlignment));
  if (scores) {
    if (!scorer_) scorer_.emplace(backend_, columns_, max_rows_);
    scorer_->prepare(num_rows, num_top);
  }
  staging_->begin();
  targets_on_device_ = staging_->put(targets_, DType::kInt64, static_cast<std::size_t>(max_rows_));
  sampled_indices_on_device_ = staging_->put(sampled_indices_, DType::kInt64, static_cast<std::size_t>(max_rows_));
  staging_->flush(stream);
}

Tensor UnsampledRows::take_logits(Context& ctx, const Tensor& logits) {
  if (none()) return logits;
  if (has_scored()) scorer_->rank(ctx, logits, targets_on_device_);
  const auto num_sampled = static_cast<std::int64_t>(sampled_indices_.size());
  const Tensor sampled = ctx.arena.take(DType::kFloat32, {num_sampled, logits.dim(1)});
  ops::gather_rows(ctx, logits, sampled_indices_on_device_, sampled);
  return sampled;
}

void UnsampledRows::download(Stream stream) {
  if (has_scored()) scorer_->download(stream);
  if (!has_embedded()) return;
  hidden_on_host_ = hidden_;
  if (backend_.device() == DeviceKind::kCpu) return;
  if (host_hidden_.num_bytes() < hidden_.num_bytes()) {
    host_hidden_ = Buffer(backend_.staging_allocator(), hidden_.num_bytes());
  }
  hidden_on_host_ = host_hidden_.view(hidden_.dtype(), hidden_.shape());
  backend_.download(stream, hidden_, hidden_on_host_);
}

void UnsampledRows::collect(const StepPlan& plan, StepResult& result) const {
  if (has_scored()) collect_scores(plan, result);
  result.embedded = embedded_;
  for (const std::int64_t row : embedded_rows_) {
    const Tensor hidden = hidden_on_host_.rows(row, 1);
    const std::size_t begin = result.hidden.size();
    result.hidden.resize(begin + static_cast<std::size_t>(hidden.num_elements()));
    widen_to_floats(static_cast<const std::byte*>(hidden.raw()), hidden.dtype(),
                    std::span(result.hidden).subspan(begin));
  }
}

void UnsampledRows::collect_scores(const StepPlan& plan, StepResult& result) const {
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& sequence = plan.sequences[i];
    if (sequence.scored_rows > 0) {
      result.targets.push_back({.sequence = static_cast<std::int32_t>(i),
                                .begin = static_cast<std::int32_t>(result.scores.size()),
                                .count = sequence.scored_rows});
    }
    for (std::int64_t row = first_row; row < first_row + sequence.scored_rows; ++row) {
      result.scores.push_back(scorer_->model_score(scorer_->shape(), row, sequence.target_top));
    }
    first_row += sequence.logit_rows;
  }
}

}  // namespace shoal
