#include "scheduler/stop_criteria.h"

#include <algorithm>
#include <iterator>

namespace shoal {

StopCriteria::StopCriteria(const Request& request, std::span<const std::int64_t> eos_ids)
    : max_new_tokens_(request.max_new_tokens),
      min_new_tokens_(request.min_new_tokens),
      eos_ids_(request.ignore_eos ? std::span<const std::int64_t>() : eos_ids),
      stop_token_ids_(request.stop_token_ids),
      stop_text_(request.stop_text),
      matcher_(request.stop, request.stop_text) {
  if (min_new_tokens_ == 0) return;
  std::set_union(eos_ids_.begin(), eos_ids_.end(), stop_token_ids_.begin(), stop_token_ids_.end(),
                 std::back_inserter(early_banned_ids_));
}

std::span<const std::int64_t> StopCriteria::banned_ids() const {
  return num_tokens_ < min_new_tokens_ ? std::span(early_banned_ids_) : std::span<const std::int64_t>();
}

bool StopCriteria::is_end_token(std::int64_t id) const {
  return std::find(eos_ids_.begin(), eos_ids_.end(), id) != eos_ids_.end();
}

bool StopCriteria::is_stop_token(std::int64_t id) const {
  return std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), id);
}

StopCriteria::Outcome StopCriteria::push(std::int64_t id, std::string_view text) {
  ++num_tokens_;
  // Text before the least length is not looked at.
  const bool too_early = num_tokens_ <= min_new_tokens_;
  Outcome outcome{.delta = too_early ? std::string(text) : matcher_.push(text), .reason = std::nullopt};
  if (num_tokens_ >= max_new_tokens_) {
    outcome.reason = FinishReason::kLength;
  } else if (is_end_token(id)) {
    outcome.reason = FinishReason::kEndOfSequence;
  } else if (is_stop_token(id) || matcher_.matched()) {
    outcome.reason = FinishReason::kStopSequence;
  }
  return outcome;
}

std::string StopCriteria::finish(std::string_view text) {
  std::string tail = matcher_.push(text);
  tail += matcher_.finish();
  return tail;
}

}  // namespace shoal
