#include "scheduler/answer_text.h"

#include <utility>

#include "core/check.h"

namespace shoal {

AnswerText::AnswerText(const Request& request, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      criteria_(request, tokenizer == nullptr ? std::span<const std::int64_t>() : tokenizer->eos_ids()),
      skip_special_tokens_(request.skip_special_tokens) {
  if (tokenizer == nullptr) {
    CHECK(request.stop.empty());
    return;
  }
  token_decoder_.emplace(*tokenizer, request.prompt_ids, SkipSpecial::kNo);
  answer_decoder_.emplace(*tokenizer, request.prompt_ids, skip_special_tokens_ ? SkipSpecial::kYes : SkipSpecial::kNo);
}

AnswerText::Step AnswerText::push(std::int64_t id, float logprob) {
  Step step{.event = {.id = id, .text = {}, .delta = {}, .logprob = logprob, .special = false}, .reason = std::nullopt};
  if (tokenizer_ == nullptr) {
    step.reason = criteria_.push(id, {}).reason;
    return step;
  }
  step.event.text = token_decoder_->push(id);
  step.event.special = tokenizer_->is_special(id);
  StopCriteria::Outcome outcome = criteria_.push(id, answer_part(id));
  step.event.delta = std::move(outcome.delta);
  step.reason = outcome.reason;
  generated_text_ += step.event.delta;
  return step;
}

std::string AnswerText::answer_part(std::int64_t id) {
  if (criteria_.is_cut_token(id)) return {};
  // An end token may be an ordinary piece of the vocabulary: it is no text of the answer all the same.
  if (skip_special_tokens_ && criteria_.is_end_token(id)) return {};
  return answer_decoder_->push(id);
}

void AnswerText::finish(FinishEvent& event) {
  event.generated_tokens = criteria_.num_tokens();
  if (tokenizer_ == nullptr) return;
  event.tail = criteria_.finish(answer_decoder_->finish());
  generated_text_ += event.tail;
  event.generated_text = std::move(generated_text_);
}

}  // namespace shoal
