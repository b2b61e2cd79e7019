#include "server/tool_call_reader.h"

#include <utility>

#include "server/json.h"

namespace shoal {

namespace {

constexpr std::string_view kBeforeName = "{\"name\": \"";
constexpr std::string_view kAfterName = "\", \"arguments\": ";

}  // namespace

ToolCallReader::Piece ToolCallReader::push(std::string_view text) {
  Piece piece;
  switch (state_) {
    case State::kWords:
      piece.content = text;
      break;
    case State::kArguments:
      piece.arguments = take_arguments(text);
      break;
    case State::kUndecided: {
      pending_ += text;
      const std::size_t first = pending_.find_first_not_of(" \n");
      if (first == std::string::npos) break;
      if (pending_[first] != '{') {
        state_ = State::kWords;
        piece.content = std::exchange(pending_, {});
        break;
      }
      state_ = State::kHead;
      pending_.erase(0, first);
      return read_head();
    }
    case State::kHead:
      pending_ += text;
      return read_head();
  }
  return piece;
}

ToolCallReader::Piece ToolCallReader::read_head() {
  Piece piece;
  const std::size_t name_end = pending_.find(kAfterName);
  if (name_end == std::string::npos) return piece;
  state_ = State::kArguments;
  piece.begins_call = true;
  piece.name = pending_.substr(kBeforeName.size(), name_end - kBeforeName.size());
  piece.arguments = take_arguments(std::exchange(pending_, {}).substr(name_end + kAfterName.size()));
  return piece;
}

// The last brace of the answer closes the call and is none of the arguments'.
std::string ToolCallReader::take_arguments(std::string_view text) {
  std::string told = std::exchange(pending_, {});
  told += text;
  if (told.ends_with('}')) {
    pending_ = "}";
    told.pop_back();
  }
  arguments_ += told;
  return told;
}

ToolCallReader::Piece ToolCallReader::finish() {
  Piece piece;
  if (state_ == State::kArguments) {
    if (!InputJson::accept(arguments_)) piece.arguments = std::exchange(pending_, {});
  } else {
    piece.content = std::exchange(pending_, {});
  }
  return piece;
}

}  // namespace shoal
