#include "server/json.h"

#include <fmt/format.h>

#include <algorithm>

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

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Past the value that begins at `at`, in JSON that has been parsed.
std::size_t value_end(std::string_view text, std::size_t at) {
  int depth = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      if (depth == 0) return std::min(i + 1, text.size());
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return i;  // a number or a word was the last of its object
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || is_space(c))) {
      return i;
    }
  }
  return text.size();
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

std::vector<std::string_view> element_texts(std::string_view array) {
  std::vector<std::string_view> elements;
  std::size_t at = std::min(array.find('['), array.size());
  while (at < array.size()) {
    ++at;  // the bracket or a comma
    while (at < array.size() && is_space(array[at])) ++at;
    if (at >= array.size() || array[at] == ']') break;
    const std::size_t end = value_end(array, at);
    elements.push_back(array.substr(at, end - at));
    at = end;
    while (at < array.size() && is_space(array[at])) ++at;
    if (at >= array.size() || array[at] != ',') break;
  }
  return elements;
}

std::string plain_spelling(std::string_view json) {
  const auto parsed = nlohmann::ordered_json::parse(json);
  const std::string compact = parsed.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string text;
  bool in_string = false;
  for (std::size_t i = 0; i < compact.size(); ++i) {
    const char c = compact[i];
    text += c;
    if (in_string && c == '\\') {
      text += compact[++i];
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == ',' || c == ':')) {
      text += ' ';
    }
  }
  return text;
}

const InputJson* find_set(const InputJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string_view> member_text(std::string_view object, std::string_view key) {
  std::optional<std::string_view> found;
  std::size_t at = object.find('{');
  const auto skip = [&](char also) {
    while (at < object.size() && (is_space(object[at]) || object[at] == also)) ++at;
  };
  while (at < object.size()) {
    ++at;  // the brace or a comma
    skip(' ');
    if (at >= object.size() || object[at] != '"') break;
    const std::size_t name_end = value_end(object, at);
    const std::string_view name = object.substr(at, name_end - at);
    at = name_end;
    skip(':');
    const std::size_t end = value_end(object, at);
    const bool is_plain = name.find('\\') == std::string_view::npos;
    const bool is_it = is_plain ? name.substr(1, name.size() - 2) == key : InputJson::parse(name) == key;
    if (is_it) found = object.substr(at, end - at);
    at = end;
    skip(' ');
    if (at >= object.size() || object[at] != ',') break;
  }
  return found;
}

}  // namespace shoal
