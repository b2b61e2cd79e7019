// AccessLog: a JSON line for each answer, without prompts, answers or keys; and the ids that tie such lines to others.
// Used by server.cc and the router.
#pragma once

#include <memory>
#include <string>

#include "server/http_server.h"

namespace spdlog {
class logger;
namespace details {
class thread_pool;
}
}  // namespace spdlog

namespace shoal {

// The client's `x-request-id` where it is 1 to 128 of A-Z a-z 0-9 . _ : - and a random one otherwise.
std::string request_id_of(const HttpRequest& request);

class AccessLog {
 public:
  // Appends to a file; "-" is stdout. StartError where it cannot be opened.
  explicit AccessLog(const std::string& path);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Any thread; never waits for the disk: where lines come faster than it takes them, the oldest are dropped.
  void write(const AnswerReport& report);

  static std::string line_of(const AnswerReport& report);

 private:
  std::shared_ptr<spdlog::details::thread_pool> writer_;  // one thread; shared as spdlog asks for it
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace shoal
