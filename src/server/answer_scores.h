// Scores of tokens as each protocol writes them. Used by the generate endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "server/json.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace shoal {

// --- native ---
// PrefillToken list of a prompt; its first token has no logprob.
OutputJson native_prefill(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt_ids,
                          const std::vector<TokenScore>& scores);
// AlternativeToken list, the likeliest `count` of those that could be sampled: lorax-client
// takes no alternative without a logprob.
OutputJson native_alternatives(const Tokenizer& tokenizer, const TokenScore& score, std::int64_t count);
// TGI's: the same as Token list.
OutputJson native_top_tokens(const Tokenizer& tokenizer, const TokenScore& score, std::int64_t count);

// --- OpenAI ---
enum class LogprobsForm : std::uint8_t { kCompletion, kChat };

// `logprobs` of one choice, whole or chunk by chunk.
class AnswerScores {
 public:
  // `num_top`: likeliest tokens beside each. `tokenizer` outlives this.
  AnswerScores(const Tokenizer& tokenizer, LogprobsForm form, std::int64_t num_top)
      : tokenizer_(tokenizer), form_(form), num_top_(num_top) {}

  // Before any add(), of an answer that repeats its prompt.
  void add_prompt(const std::vector<std::int64_t>& prompt_ids, const std::vector<TokenScore>& scores);
  void add(const TokenEvent& token);
  // Of the tokens that were added since the last call.
  OutputJson take();

 private:
  struct Entry {
    std::int64_t id = 0;
    std::string bytes;
    std::optional<TokenScore> score;  // none: the first token of a prompt
  };
  OutputJson completion_json();
  OutputJson chat_json() const;

  const Tokenizer& tokenizer_;
  LogprobsForm form_;
  std::int64_t num_top_;
  std::vector<Entry> entries_;
  Utf8Stream text_;                  // of the tokens that were taken
  std::int64_t num_characters_ = 0;  // that are final of it
};

// vLLM's prompt_logprobs: null for the first token, then for each the likeliest `count` and itself, by id.
OutputJson prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt_ids,
                                const std::vector<TokenScore>& scores, std::int64_t count);

}  // namespace shoal
