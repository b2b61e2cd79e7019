#include "server/access_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>

#include "core/result.h"
#include "server/generation.h"
#include "server/json.h"

namespace shoal {

namespace {

constexpr std::size_t kMaxIdBytes = 128;
constexpr std::size_t kWaitingLines = 8192;
constexpr std::size_t kMaxPathBytes = 512;  // of what a client asked for; the routes are shorter

bool may_stand_in_an_id(char c) {
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_letter || (c >= '0' && c <= '9') || std::string_view("._:-").find(c) != std::string_view::npos;
}

spdlog::sink_ptr open_sink(const std::string& path) {
  if (path == "-") return std::make_shared<spdlog::sinks::stdout_sink_mt>();
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& error) {
    throw StartError(fmt::format("access log {}: {}", path, error.what()));
  }
}

}  // namespace

std::string request_id_of(const HttpRequest& request) {
  const std::string_view given = request.header("x-request-id").value_or("");
  if (!given.empty() && given.size() <= kMaxIdBytes && std::all_of(given.begin(), given.end(), may_stand_in_an_id)) {
    return std::string(given);
  }
  return fmt::format("{:016x}{:016x}", random_u64(), random_u64());
}

AccessLog::AccessLog(const std::string& path)
    : writer_(std::make_shared<spdlog::details::thread_pool>(kWaitingLines, 1)),
      logger_(std::make_shared<spdlog::async_logger>("access", open_sink(path), writer_,
                                                     spdlog::async_overflow_policy::overrun_oldest)) {
  logger_->set_pattern("%v", spdlog::pattern_time_type::utc);
  logger_->flush_on(spdlog::level::info);
}

// The writer first: it writes what waits and ends, and only then does what it writes to go.
AccessLog::~AccessLog() { writer_.reset(); }

void AccessLog::write(const AnswerReport& report) { logger_->info("{}", line_of(report)); }

std::string AccessLog::line_of(const AnswerReport& report) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now();
  const auto part = duration_cast<milliseconds>(now.time_since_epoch()).count() % 1000;
  OutputJson json;
  json["time"] =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), part);
  json["peer"] = report.peer;
  json["method"] = report.method;
  json["path"] = report.path.substr(0, kMaxPathBytes);
  json["status"] = report.status;
  json["bytes"] = report.body_bytes;
  json["duration_ms"] = duration_cast<milliseconds>(report.duration).count();
  json["complete"] = report.complete;
  for (const auto& [name, value] : report.notes) json[name] = value;
  for (const auto& [name, count] : report.counts) json[name] = count;
  return to_text(json);
}

}  // namespace shoal
