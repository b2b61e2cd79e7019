// Logging set-up; every room logs through spdlog's default logger. Called once, by cli/.
#pragma once

#include <string>

namespace shoal {

enum class LogFormat { kText, kJson };

// `level`: trace, debug, info, warn, error or off. Logs go to stderr.
void init_logging(const std::string& level, LogFormat format);

}  // namespace shoal
