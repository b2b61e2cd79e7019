// AnswerText: turns the sampled tokens of one request into token events, and knows when the answer is whole.
// Used by the scheduler's loop, one a request.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "scheduler/request.h"
#include "scheduler/stop_criteria.h"
#include "text/incremental_decoder.h"
#include "text/tokenizer.h"

namespace shoal {

class AnswerText {
 public:
  // `tokenizer` outlives this; null: no text is made. `request` is only read here.
  AnswerText(const Request& request, const Tokenizer* tokenizer);

  struct Step {
    TokenEvent event;
    std::optional<FinishReason> reason;  // set when this token is the last
  };
  // The next token of the answer.
  Step push(std::int64_t id, float logprob);

  // Tokens that must not be sampled next, ascending.
  std::span<const std::int64_t> banned_ids() const { return criteria_.banned_ids(); }

  // After the last token: completes text and tail of the finish event and its count of tokens. A half character at
  // the end costs only itself.
  void finish(FinishEvent& event);

 private:
  // The text of the answer that `id` makes final.
  std::string answer_part(std::int64_t id);

  const Tokenizer* tokenizer_;
  StopCriteria criteria_;
  bool skip_special_tokens_;
  // Two, since a token has a text of its own that is no part of the answer: a special one, or one that is cut.
  std::optional<IncrementalDecoder> token_decoder_;   // of all tokens, special ones kept
  std::optional<IncrementalDecoder> answer_decoder_;  // of those that the answer shows
  std::string generated_text_;                        // the deltas so far
};

}  // namespace shoal
