#include "server/server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>

#include "server/access_log.h"
#include "server/context.h"
#include "server/router.h"

namespace shoal {

namespace {

constexpr rlim_t kMaxFiles = 65536;

// Each connection is a file: the soft limit of a shell would end at a thousand.
void raise_file_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, kMaxFiles));
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

Server::Server(ServerOptions options, Services services)
    : context_(std::make_unique<ServerContext>(std::move(options), std::move(services))) {
  raise_file_limit();
  ServerContext* context = context_.get();
  HttpServer::EndHandler log_answer;
  if (!context->options.access_log.empty()) {
    access_log_ = std::make_unique<AccessLog>(context->options.access_log);
    log_answer = [log = access_log_.get()](const AnswerReport& report) { log->write(report); };
  }
  http_ = std::make_unique<HttpServer>(
      context->options.http,
      [context](const HttpRequest& request, const ResponseWriter& writer) { route(*context, request, writer); },
      [context](int status, const HttpRequest& request, const ResponseWriter& writer) {
        route_fault(*context, status, request, writer);
      },
      std::move(log_answer));
  const HttpServerOptions& http = context->options.http;
  spdlog::info("listening on {}://{}:{}", http.tls ? "https" : "http", http.hostname, http_->port());
}

Server::~Server() = default;

std::int32_t Server::port() const { return http_->port(); }

std::size_t Server::num_connections() const { return http_->num_connections(); }

void Server::set_ready(bool ready) { context_->ready = ready; }

void Server::stop(std::chrono::milliseconds grace) {
  context_->ready = false;
  http_->stop(grace);
}

}  // namespace shoal
