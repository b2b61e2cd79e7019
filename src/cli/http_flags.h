// HttpFlags: the flags of the HTTP server itself: who may call, how large and how slow a request may be, browsers.
// Used by `serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/server_options.h"
#include "server/tls.h"

namespace shoal {

struct HttpFlags {
  std::string api_key_file;
  std::string access_log;
  TlsFiles tls;
  std::vector<std::string> cors_allow_origin;
  std::vector<std::string> cors_allow_method;
  std::vector<std::string> cors_allow_header;
  std::vector<std::string> cors_expose_header;
  bool cors_allow_credentials = false;
  std::int64_t max_connections = 8192;
  std::string max_header_bytes = "32KiB";
  std::string max_body_bytes = "2MiB";
  std::string max_stream_buffer_bytes = "1MiB";
  double idle_timeout_s = 75.0;
  double header_timeout_s = 10.0;
  double body_timeout_s = 60.0;
  double write_timeout_s = 30.0;
  std::int32_t validation_workers = 2;

  void add_to(CLI::App& command);
  // UsageError names the flag that cannot be, or the file of TLS; the file of keys is read once, so that a broken one
  // is told before a model is loaded: StartError.
  void apply(ServerOptions& options) const;

 private:
  void apply_tls(HttpServerOptions& http) const;
};

}  // namespace shoal
