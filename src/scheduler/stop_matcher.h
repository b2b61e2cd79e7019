// StopMatcher: finds the first stop string in text that arrives in pieces, and keeps back what may become one.
// Used by StopCriteria.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/request.h"

namespace shoal {

// The match is the stop string that is complete first; of several complete at the same place, the longest. So it does
// not depend on how the text is cut into pieces. Each byte costs one step of a prefix automaton (Knuth, Morris, Pratt)
// a stop string, however long the strings are.
class StopMatcher {
 public:
  // No string of `stop` is empty.
  StopMatcher(std::span<const std::string> stop, StopText stop_text);

  // Takes newly final text; returns what may be shown. kCut: the longest suffix that could still become a stop string
  // is held back, and the stop string itself never shows. kKeep: all, up to the end of the stop string.
  // After a match: "".
  std::string push(std::string_view text);
  // The text ends here: returns what was held back and is no stop string after all.
  std::string finish();

  bool matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<std::int32_t> fallback;  // [text length + 1] longest proper border of each prefix
    std::size_t matched = 0;             // bytes of it that the text so far ends in
  };

  // Feeds one byte to each pattern; returns the length of the longest one now complete, or 0.
  std::size_t advance(char byte);

  std::vector<Pattern> patterns_;
  StopText stop_text_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace shoal
