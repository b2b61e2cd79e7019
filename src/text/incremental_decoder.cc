#include "text/incremental_decoder.h"

#include <algorithm>
#include <vector>

namespace shoal {

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, std::span<const std::int64_t> prompt_ids,
                                       SkipSpecial skip)
    : tokenizer_(tokenizer), skip_(skip), strip_left_(tokenizer.strip_count()) {
  take_context(prompt_ids);
}

// Of a prompt only two things matter: that the text has begun, and the bytes of a character that it ends within.
void IncrementalDecoder::take_context(std::span<const std::int64_t> prompt_ids) {
  std::size_t begun = 0;
  while (begun < prompt_ids.size() && (is_first_ || strip_left_ > 0)) push(prompt_ids[begun++]);

  // A lead byte is never a continuation byte, so the state after the last three bytes is the state after them all.
  constexpr std::size_t kLongestTail = 3;
  std::size_t from = prompt_ids.size();
  std::size_t num_bytes = 0;
  std::vector<std::string> last;
  while (from > begun && num_bytes < kLongestTail) {
    last.push_back(bytes_of(prompt_ids[--from]));
    num_bytes += last.back().size();
  }
  std::string discarded;
  for (auto bytes = last.rbegin(); bytes != last.rend(); ++bytes) stream_.push(*bytes, discarded);
}

std::string IncrementalDecoder::push(std::int64_t id) {
  std::string text;
  stream_.push(bytes_of(id), text);
  strip(text);
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text;
  stream_.finish(text);
  strip(text);
  return text;
}

std::string IncrementalDecoder::bytes_of(std::int64_t id) {
  if (skip_ == SkipSpecial::kYes && tokenizer_.is_special(id)) return {};
  if (is_first_ && tokenizer_.piece(id).empty()) return {};  // an unknown id begins nothing
  std::string bytes = tokenizer_.token_bytes(id, is_first_);
  is_first_ = false;
  return bytes;
}

void IncrementalDecoder::strip(std::string& text) {
  if (strip_left_ == 0) return;
  const std::string& prefix = tokenizer_.strip_prefix();
  std::size_t dropped = 0;
  while (strip_left_ > 0 && text.compare(dropped, prefix.size(), prefix) == 0) {
    dropped += prefix.size();
    --strip_left_;
  }
  text.erase(0, dropped);
  if (!text.empty()) strip_left_ = 0;
}

}  // namespace shoal
