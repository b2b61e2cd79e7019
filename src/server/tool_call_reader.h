// ToolCallReader: tells words from a call in an answer that arrives in pieces, as tool_grammar() bounds it. Used by
// openai_chat.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

class ToolCallReader {
 public:
  struct Piece {
    std::string content;       // words
    bool begins_call = false;  // with the name below
    std::string name;
    std::string arguments;  // further text of them
  };

  Piece push(std::string_view text);
  // The answer ends here. A call that was cut keeps what there is of it.
  Piece finish();
  bool has_call() const { return state_ == State::kArguments; }

 private:
  enum class State : std::uint8_t { kUndecided, kWords, kHead, kArguments };

  Piece read_head();
  std::string take_arguments(std::string_view text);

  State state_ = State::kUndecided;
  std::string pending_;    // not yet told: the beginning, or the brace that may be the call's own
  std::string arguments_;  // told so far
};

}  // namespace shoal
