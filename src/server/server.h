// Server: the HTTP API over one scheduler. Made by cli/, which handles signals and calls set_ready and stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "server/server_options.h"

namespace shoal {

struct ServerContext;
class AccessLog;

class Server {
 public:
  // Listens and serves at once; logs "listening on http://host:port". Everything in `services` outlives the server.
  // Throws StartError when the address cannot be bound.
  Server(ServerOptions options, Services services);
  ~Server();  // stop() without grace
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::int32_t port() const;
  std::size_t num_connections() const;

  // Not ready: /health answers 503 and new generations are refused with 503; those under way go on.
  void set_ready(bool ready);

  // Closes idle connections at once and the others when their answer has ended, or after `grace`. Afterwards no
  // service is used any more.
  void stop(std::chrono::milliseconds grace);

 private:
  std::unique_ptr<ServerContext> context_;
  std::unique_ptr<AccessLog> access_log_;  // null: none is kept
  std::unique_ptr<HttpServer> http_;
};

}  // namespace shoal
