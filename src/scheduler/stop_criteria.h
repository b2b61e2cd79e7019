// StopCriteria: decides after each token whether an answer ends and why, and which text of it may be shown.
// Used by AnswerText, one a request.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/stop_matcher.h"

namespace shoal {

class StopCriteria {
 public:
  // `eos_ids` outlives the criteria. `request` is only read here.
  StopCriteria(const Request& request, std::span<const std::int64_t> eos_ids);

  // True if this token ends the answer as the model's own; its text is then no part of an answer without special
  // tokens.
  bool is_end_token(std::int64_t id) const;
  // True if this token is one of the request's that end the answer, and its text is cut as that of a stop string.
  bool is_cut_token(std::int64_t id) const { return stop_text_ == StopText::kCut && is_stop_token(id); }

  // Tokens that must not be sampled next, ascending: the answer is shorter than its least length.
  std::span<const std::int64_t> banned_ids() const;

  struct Outcome {
    std::string delta;                   // text that may be shown now
    std::optional<FinishReason> reason;  // set when this token is the last
  };
  // One token and the text that became final with it. The order is LoRAX's: length, end of sequence, stop string; a
  // stop string ends the text whatever the reason.
  Outcome push(std::int64_t id, std::string_view text);
  // After the last token: text that became final by the end, and what was held back and is shown after all.
  std::string finish(std::string_view text);

  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  bool is_stop_token(std::int64_t id) const;

  std::int64_t max_new_tokens_;
  std::int64_t min_new_tokens_;
  std::span<const std::int64_t> eos_ids_;  // empty if they are ignored
  std::vector<std::int64_t> stop_token_ids_;
  std::vector<std::int64_t> early_banned_ids_;  // empty without a least length
  StopText stop_text_;
  StopMatcher matcher_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace shoal
