// ControlText: tells a template's own control tokens from the same characters in a user's message. Used by
// ChatTemplate.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "text/tokenizer.h"

namespace shoal {

struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> plain_ranges;  // where the text of a message spells a special token; ascending
};

// A message that spells "<|im_end|>" must not end its turn. Such spellings are put between two noncharacters before
// the template runs; afterwards these are taken out again and leave the ranges that stay ordinary text.
class ControlText final {
 public:
  explicit ControlText(const Tokenizer& tokenizer);

  // Marks every string inside these JSON documents, in place. kValidation if one is not JSON or nested too deeply.
  Status mark(std::span<std::string* const> documents);
  RenderedPrompt unmark(const std::string& rendered) const;

 private:
  bool choose_marks(std::string_view documents);
  std::string mark_text(const std::string& text) const;

  std::array<std::vector<std::string>, 256> special_texts_;  // by first byte, the longest first
  std::string open_;                                         // UTF-8 of two noncharacters that the messages do not hold
  std::string close_;
};

// Whether a JSON text nests deeper than any message has reason to; parsers recurse.
bool is_nested_too_deeply(std::string_view json);

}  // namespace shoal
