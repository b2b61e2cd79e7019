#include "weights/json_text.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "weights/start_error.h"

namespace shoal {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

nlohmann::json parse_json_object(std::string_view text, std::string_view file, DuplicateKeys duplicates) {
  using Event = nlohmann::json::parse_event_t;
  std::set<std::string> keys;
  const auto on_event = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kMaxDepth) {
      throw_mismatch(file, "JSON nesting", {.found = "more", .expected = fmt::format("at most {} levels", kMaxDepth)});
    }
    if (duplicates == DuplicateKeys::kRefuse && event == Event::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.insert(key).second) {
        throw_mismatch(file, printable(key), {.found = "the name twice", .expected = "unique names"});
      }
    }
    return true;
  };
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(text.begin(), text.end(), on_event);
  } catch (const nlohmann::json::exception& error) {
    // The library's texts begin with "[json.exception.parse_error.101] ", which tells nobody anything.
    const std::string_view what = error.what();
    throw_mismatch(file, "malformed JSON", {.found = what.substr(what.find(' ') + 1), .expected = "a JSON object"});
  }
  if (!document.is_object()) {
    throw_mismatch(file, "top level", {.found = describe_json(document), .expected = "a JSON object"});
  }
  return document;
}

std::string read_text_file(const std::string& path, std::int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw_mismatch(path, "file", {.found = error ? error.message() : "no regular file", .expected = "a readable file"});
  }
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const auto num_bytes = static_cast<std::int64_t>(stream.tellg());
  if (!stream || num_bytes < 0) {
    throw_mismatch(path, "file", {.found = "a file that does not open", .expected = "a readable file"});
  }
  if (num_bytes > max_bytes) {
    throw_mismatch(
        path, "file size",
        {.found = fmt::format("{} bytes", num_bytes), .expected = fmt::format("at most {} bytes", max_bytes)});
  }
  std::string text(static_cast<std::size_t>(num_bytes), '\0');
  stream.seekg(0);
  if (!stream.read(text.data(), num_bytes)) {
    throw_mismatch(path, "file", {.found = "a read error", .expected = fmt::format("{} readable bytes", num_bytes)});
  }
  return text;
}

std::string describe_json(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {} entries", value.size());
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const char* type = value.is_number_integer() ? "integer" : value.is_number() ? "fraction" : value.type_name();
  return fmt::format("{} ({})", printable(text, 80), type);
}

}  // namespace shoal
