#include "scheduler/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace shoal {
namespace {

std::vector<std::int32_t> borders(const std::string& text) {
  std::vector<std::int32_t> fallback(text.size() + 1, 0);
  std::size_t border = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = static_cast<std::size_t>(fallback[border]);
    if (text[i] == text[border]) ++border;
    fallback[i + 1] = static_cast<std::int32_t>(border);
  }
  return fallback;
}

}  // namespace

StopMatcher::StopMatcher(std::span<const std::string> stop, StopText stop_text) : stop_text_(stop_text) {
  for (const std::string& text : stop) {
    CHECK(!text.empty());
    patterns_.push_back({.text = text, .fallback = borders(text)});
  }
}

std::size_t StopMatcher::advance(char byte) {
  std::size_t longest = 0;
  for (Pattern& pattern : patterns_) {
    while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
      pattern.matched = static_cast<std::size_t>(pattern.fallback[pattern.matched]);
    }
    if (pattern.text[pattern.matched] == byte) ++pattern.matched;
    if (pattern.matched == pattern.text.size()) longest = std::max(longest, pattern.matched);
  }
  return longest;
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  if (patterns_.empty()) return std::string(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t length = advance(text[i]);
    if (length == 0) continue;
    matched_ = true;
    std::string shown = std::exchange(held_, {});
    shown += text.substr(0, i + 1);
    if (stop_text_ == StopText::kCut) shown.resize(shown.size() - length);
    return shown;
  }
  if (stop_text_ == StopText::kKeep) return std::string(text);
  std::size_t held_bytes = 0;
  for (const Pattern& pattern : patterns_) held_bytes = std::max(held_bytes, pattern.matched);
  held_ += text;
  std::string shown = held_.substr(0, held_.size() - held_bytes);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace shoal
