// JSON of the wire: output keeps key order and float32 text; input is bounded in depth. Used by every endpoint file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace shoal {

// Floats are float32, so that -0.1F is written "-0.1"; NaN and infinities are written null.
using OutputJson =
    nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, std::int64_t, std::uint64_t, float>;
using InputJson = nlohmann::json;

// One line of text; bytes that are no UTF-8 become U+FFFD.
std::string to_text(const OutputJson& json);

// One server-sent event: `data: {...}` and an empty line.
std::string to_event(const OutputJson& json);

struct JsonFault {
  std::string message;  // where and why
};

inline constexpr int kMaxJsonDepth = 64;

std::variant<InputJson, JsonFault> parse_json(std::string_view text);

// A member of an object; null where it is absent or null itself.
const InputJson* find_set(const InputJson& object, const char* name);

// The text of a member of an object, as it was sent: parsed JSON has its keys in another order. `object` has been
// parsed. Of several members of that name the last, as the parser takes it.
std::optional<std::string_view> member_text(std::string_view object, std::string_view key);
// The same of an array: its elements in order.
std::vector<std::string_view> element_texts(std::string_view array);

// JSON that has been parsed, its keys in order, in the one spelling that Python's `json.dumps(ensure_ascii=False)` has:
// clients space and escape as they like, and a prompt that holds JSON must not differ by that.
std::string plain_spelling(std::string_view json);

}  // namespace shoal
