// Reading untrusted JSON text into an object, with a bound on nesting. Used by the file readers of weights/.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace shoal {

// Whether a key that stands twice at the top level is refused, or its last value counts as in Python.
enum class DuplicateKeys { kRefuse, kLastCounts };

// The object in `text`. Malformed text, nesting deeper than 64 and anything but an object is a StartError that
// starts with `file`.
nlohmann::json parse_json_object(std::string_view text, std::string_view file, DuplicateKeys duplicates);

// The whole of a regular file of at most `max_bytes`; StartError otherwise.
std::string read_text_file(const std::string& path, std::int64_t max_bytes);

// A value as it stands in the file, with its type, short enough for a message: `"abc" (string)`.
std::string describe_json(const nlohmann::json& value);

}  // namespace shoal
