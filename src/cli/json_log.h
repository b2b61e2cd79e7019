// Log lines as JSON, one object each. Used by `shoal serve --json-output`.
#pragma once

#include <spdlog/formatter.h>
#include <memory>

namespace shoal {

// {"time":"...","level":"...","message":"..."}; the message is escaped, and bytes of it that are no UTF-8 replaced.
std::unique_ptr<spdlog::formatter> make_json_formatter();

}  // namespace shoal
