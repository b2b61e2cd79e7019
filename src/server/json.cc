#include "server/json.h"

#include <fmt/format.h>

namespace shoal {

namespace {

// Depth of brackets outside strings, whatever else is wrong with the text.
bool deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limit) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// nlohmann's texts begin with "[json.exception.parse_error.101] ", which tells a client nothing.
std::string without_exception_id(std::string_view what) {
  const std::size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace

std::string to_text(const OutputJson& json) { return json.dump(-1, ' ', false, OutputJson::error_handler_t::replace); }

std::string to_event(const OutputJson& json) { return "data: " + to_text(json) + "\n\n"; }

std::variant<InputJson, JsonFault> parse_json(std::string_view text) {
  if (deeper_than(text, kMaxJsonDepth)) {
    return JsonFault{fmt::format("the JSON is nested deeper than {} levels", kMaxJsonDepth)};
  }
  try {
    return InputJson::parse(text);
  } catch (const InputJson::exception& error) {
    return JsonFault{without_exception_id(error.what())};
  }
}

}  // namespace shoal
