#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/result.h"
#include "server/http_connection.h"

namespace shoal {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kAcceptRetry = std::chrono::milliseconds(50);
constexpr std::size_t kMaxTurnedAway = 64;  // connections beyond the limit that hear why, at once
constexpr auto kAbortWait = std::chrono::milliseconds(2000);

asio::awaitable<void> accept_loop(std::shared_ptr<HttpServer::Core> core) {
  asio::steady_timer pause(core->acceptor.get_executor());
  for (;;) {
    auto [error, socket] =
        co_await core->acceptor.async_accept(asio::make_strand(core->io), asio::as_tuple(asio::use_awaitable));
    if (core->stopping) co_return;
    if (error) {
      // Out of file descriptors, usually: spinning would only make it worse.
      spdlog::warn("cannot accept a connection: {}", error.message());
      pause.expires_after(kAcceptRetry);
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    const auto connection = std::make_shared<HttpConnection>(core, std::move(socket));
    {
      const std::lock_guard lock(core->mutex);
      const std::size_t limit = core->options.max_connections;
      if (core->connections.size() >= limit + kMaxTurnedAway) continue;
      if (core->connections.size() >= limit) connection->turn_away();
      core->connections.emplace(connection.get(), connection);
    }
    connection->start();
  }
}

void listen(HttpServer::Core& core) {
  const HttpServerOptions& options = core.options;
  error_code error;
  tcp::resolver resolver(core.io);
  const auto addresses =
      resolver.resolve(options.hostname, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || addresses.empty()) {
    throw StartError(fmt::format("cannot resolve hostname '{}': {}", options.hostname, error.message()));
  }
  const tcp::endpoint endpoint = addresses.begin()->endpoint();
  // By code, not by exception: the text of one ends in a path of Boost's sources.
  core.acceptor.open(endpoint.protocol(), error);
  if (!error) core.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) core.acceptor.bind(endpoint, error);
  if (!error) core.acceptor.listen(4096, error);
  if (error)
    throw StartError(fmt::format("cannot listen on {}:{}: {}", options.hostname, options.port, error.message()));
  core.port = core.acceptor.local_endpoint().port();
}

}  // namespace

HttpServer::HttpServer(HttpServerOptions options, Handler handler, FaultHandler fault_handler, EndHandler end_handler)
    : core_(std::make_shared<Core>(std::move(options), std::move(handler), std::move(fault_handler),
                                   std::move(end_handler))) {
  listen(*core_);
  asio::co_spawn(core_->acceptor.get_executor(), accept_loop(core_), asio::detached);
  for (std::int32_t i = 0; i < core_->options.num_threads; ++i) {
    core_->threads.emplace_back([core = core_.get()] { core->io.run(); });
  }
}

HttpServer::~HttpServer() { stop(std::chrono::milliseconds(0)); }

std::int32_t HttpServer::port() const { return core_->port; }

std::size_t HttpServer::num_connections() const {
  const std::lock_guard lock(core_->mutex);
  return core_->connections.size();
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  if (core_->stopping.exchange(true)) return;
  asio::post(core_->acceptor.get_executor(), [core = core_.get()] {
    error_code ignored;
    core->acceptor.close(ignored);
  });
  const auto tell_all = [core = core_.get()](void (HttpConnection::*action)()) {
    const std::lock_guard lock(core->mutex);
    for (const auto& [key, weak] : core->connections) {
      const auto connection = weak.lock();
      if (connection) asio::post(connection->executor(), [connection, action] { ((*connection).*action)(); });
    }
  };
  const auto wait_all = [core = core_.get()](std::chrono::milliseconds limit) {
    std::unique_lock lock(core->mutex);
    return core->all_closed.wait_for(lock, limit, [core] { return core->connections.empty(); });
  };
  tell_all(&HttpConnection::stop);
  if (!wait_all(grace)) {
    tell_all(&HttpConnection::abort);
    wait_all(kAbortWait);
  }
  core_->io.stop();
  core_->threads.clear();
  // What was posted meanwhile holds connections, which hold the loop: run it out, or neither is ever freed.
  core_->stopped = true;
  core_->io.restart();
  core_->io.poll();
}

}  // namespace shoal
