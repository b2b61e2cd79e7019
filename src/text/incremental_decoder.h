// IncrementalDecoder: tokens in one by one, final text out. One a request; used by scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace shoal {

// Whatever push() and finish() return adds up, byte for byte, to Tokenizer::decode of prompt and tokens, less the text
// that was final when the prompt ended. Only an incomplete character is ever held back; a U+FFFD that the text really
// holds is not. The cost of push() does not depend on what came before.
class IncrementalDecoder final {
 public:
  // The tokenizer must outlive this object.
  IncrementalDecoder(const Tokenizer& tokenizer, std::span<const std::int64_t> prompt_ids, SkipSpecial skip);

  // The text that became final with this token: "" inside a character, for a skipped or an unknown token.
  std::string push(std::int64_t id);
  // The rest: U+FFFD if the last character never became whole.
  std::string finish();

 private:
  void take_context(std::span<const std::int64_t> prompt_ids);
  std::string bytes_of(std::int64_t id);
  void strip(std::string& text);

  const Tokenizer& tokenizer_;
  SkipSpecial skip_;
  Utf8Stream stream_;
  bool is_first_ = true;         // no token has counted yet
  std::int64_t strip_left_ = 0;  // prefixes that may still be dropped at the start of the text
};

}  // namespace shoal
