#include "cli/http_flags.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/options.h"
#include "core/result.h"
#include "server/api_keys.h"

namespace shoal {
namespace {

constexpr std::int64_t kMinHeaderBytes = 1 << 10;
constexpr std::int64_t kMaxHeaderBytes = 1 << 20;
constexpr std::int64_t kMinBodyBytes = 1 << 10;
constexpr std::int64_t kMaxBodyBytes = 1 << 30;

std::size_t bytes_of(const std::string& flag, const std::string& text, std::int64_t least, std::int64_t most) {
  const std::int64_t bytes = parse_bytes(flag, text);
  if (bytes < least || bytes > most) {
    throw UsageError(fmt::format("{} is {}, expected from {} to {} bytes", flag, text, least, most));
  }
  return static_cast<std::size_t>(bytes);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

// One a flag, or several in the variable, parted by commas.
CLI::Option* add_list(CLI::App& command, const char* name, std::vector<std::string>& list, const char* variable,
                      const char* meaning) {
  return command.add_option(name, list, meaning)
      ->envname(variable)
      ->allow_extra_args(false)
      ->delimiter(',')
      ->check(some_text());
}

void add_seconds(CLI::App& command, const char* name, double& seconds, const char* variable, const char* meaning) {
  command.add_option(name, seconds, meaning)
      ->envname(variable)
      ->check(number_between(0.001, 86400.0))
      ->capture_default_str();
}

}  // namespace

void HttpFlags::add_to(CLI::App& command) {
  command
      .add_option("--api-key-file", api_key_file,
                  "JSON file of keys, tenants and their adapters; read again when it changes")
      ->envname("API_KEY_FILE")
      ->check(some_text());
  command
      .add_option("--access-log", access_log,
                  "file of a JSON line an answer, without texts; - is stdout (default: none)")
      ->envname("ACCESS_LOG")
      ->check(some_text());
  command
      .add_option("--tls-cert-file,--ssl-certfile", tls.certificate,
                  "PEM of the server's certificate and those above it; speaks HTTPS; read again when it changes")
      ->envname("TLS_CERT_FILE")
      ->check(some_text());
  command.add_option("--tls-key-file,--ssl-keyfile", tls.key, "PEM of its key, not encrypted")
      ->envname("TLS_KEY_FILE")
      ->check(some_text());
  command
      .add_option("--tls-client-ca-file", tls.client_ca,
                  "PEM of authorities: clients must show a certificate of one of them")
      ->envname("TLS_CLIENT_CA_FILE")
      ->check(some_text());
  add_list(command, "--cors-allow-origin", cors_allow_origin, "CORS_ALLOW_ORIGIN",
           "origin whose pages may call; may be repeated (default: any)");
  add_list(command, "--cors-allow-method", cors_allow_method, "CORS_ALLOW_METHOD",
           "method that they may use; may be repeated (default: GET and POST)");
  add_list(command, "--cors-allow-header", cors_allow_header, "CORS_ALLOW_HEADER",
           "header that they may send; may be repeated (default: content-type and authorization)");
  add_list(command, "--cors-expose-header", cors_expose_header, "CORS_EXPOSE_HEADER",
           "header of answers that they may read; may be repeated");
  add_switch(command, "--cors-allow-credentials", cors_allow_credentials,
             "they may send cookies; needs --cors-allow-origin")
      ->envname("CORS_ALLOW_CREDENTIALS");
  command.add_option("--max-connections", max_connections, "open at once; beyond: 503")
      ->envname("MAX_CONNECTIONS")
      ->check(CLI::Range(1, 60000))
      ->capture_default_str();
  command.add_option("--max-header-bytes", max_header_bytes, "of one request; beyond: 431")
      ->envname("MAX_HEADER_BYTES")
      ->capture_default_str();
  command.add_option("--max-body-bytes", max_body_bytes, "of one request; beyond: 413")
      ->envname("MAX_BODY_BYTES")
      ->capture_default_str();
  command
      .add_option("--max-stream-buffer-bytes", max_stream_buffer_bytes,
                  "of a stream that wait for a slow reader; beyond, it is cut off")
      ->envname("MAX_STREAM_BUFFER_BYTES")
      ->capture_default_str();
  add_seconds(command, "--idle-timeout", idle_timeout_s, "IDLE_TIMEOUT",
              "seconds between two requests of a connection");
  add_seconds(command, "--header-timeout", header_timeout_s, "HEADER_TIMEOUT",
              "seconds from the first byte of a request to the end of its headers; then 408");
  add_seconds(command, "--body-timeout", body_timeout_s, "BODY_TIMEOUT",
              "seconds from there to the end of its body; then 408");
  add_seconds(command, "--write-timeout", write_timeout_s, "WRITE_TIMEOUT",
              "seconds for which a client may take no byte of its answer; then it is cut off");
  command.add_option("--validation-workers", validation_workers, "threads that parse, tokenize and write answers")
      ->envname("VALIDATION_WORKERS")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

void HttpFlags::apply_tls(HttpServerOptions& http) const {
  if (tls.certificate.empty() && tls.key.empty() && tls.client_ca.empty()) return;
  if (tls.certificate.empty()) throw UsageError("--tls-cert-file is missing: TLS needs a certificate and its key");
  if (tls.key.empty()) throw UsageError("--tls-key-file is missing: TLS needs a certificate and its key");
  try {
    http.tls = std::make_shared<const TlsContext>(tls);
  } catch (const StartError& error) {
    throw UsageError(error.what());
  }
}

void HttpFlags::apply(ServerOptions& options) const {
  HttpServerOptions& http = options.http;
  http.num_threads = validation_workers;
  http.max_connections = static_cast<std::size_t>(max_connections);
  http.max_header_bytes = bytes_of("--max-header-bytes", max_header_bytes, kMinHeaderBytes, kMaxHeaderBytes);
  http.max_body_bytes = bytes_of("--max-body-bytes", max_body_bytes, kMinBodyBytes, kMaxBodyBytes);
  http.max_stream_buffer_bytes =
      bytes_of("--max-stream-buffer-bytes", max_stream_buffer_bytes, kMinBodyBytes, kMaxBodyBytes);
  http.idle_timeout = milliseconds_of(idle_timeout_s);
  http.header_timeout = milliseconds_of(header_timeout_s);
  http.body_timeout = milliseconds_of(body_timeout_s);
  http.write_timeout = milliseconds_of(write_timeout_s);
  CorsOptions& cors = options.cors;
  cors.allow_origins = cors_allow_origin;
  if (std::find(cors.allow_origins.begin(), cors.allow_origins.end(), "*") != cors.allow_origins.end()) {
    cors.allow_origins.clear();
  }
  if (!cors_allow_method.empty()) cors.allow_methods = cors_allow_method;
  if (!cors_allow_header.empty()) cors.allow_headers = cors_allow_header;
  cors.expose_headers = cors_expose_header;
  cors.allow_credentials = cors_allow_credentials;
  if (cors.allow_credentials && cors.allow_origins.empty()) {
    throw UsageError("--cors-allow-credentials needs --cors-allow-origin: browsers refuse it where any page may call");
  }
  apply_tls(http);
  options.access_log = access_log;
  options.api_key_file = api_key_file;
  if (!api_key_file.empty()) read_api_key_file(api_key_file, options.default_adapter_source);
}

}  // namespace shoal
