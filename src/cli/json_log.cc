#include "cli/json_log.h"

#include <spdlog/pattern_formatter.h>

#include <nlohmann/json.hpp>
#include <string>

namespace shoal {
namespace {

// Messages hold paths, names and texts of clients: unescaped, a quote would break the line and a hostile name forge it.
class QuotedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& out) override {
    const nlohmann::json text = std::string(message.payload.data(), message.payload.size());
    const std::string quoted = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override { return std::make_unique<QuotedMessage>(); }
};

}  // namespace

std::unique_ptr<spdlog::formatter> make_json_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<QuotedMessage>('*');
  formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%*})");
  return formatter;
}

}  // namespace shoal
