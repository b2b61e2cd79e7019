// HttpServer: HTTP/1.1 connections behind plain HttpRequest and ResponseWriter; nothing here knows what is served.
// Used by Server and the endpoint files; the http_*.cc with Boost stay behind it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

class TlsContext;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;  // lower-case names, in order

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // target up to '?', as sent
  std::string query;   // after '?', as sent
  HttpHeaders headers;
  std::string body;
  std::string peer;  // "address:port" of the client

  // The first header of that lower-case name.
  std::optional<std::string_view> header(std::string_view name) const;
};

// What became of a request, for a log.
struct AnswerReport {
  std::string method;
  std::string path;
  std::string peer;
  int status = 0;               // 0: none was sent
  std::int64_t body_bytes = 0;  // produced; sent where `complete`
  std::chrono::steady_clock::duration duration{};
  bool complete = false;  // sent whole
  HttpHeaders notes;      // of ResponseWriter::note
  std::vector<std::pair<std::string, std::int64_t>> counts;
};

// The answer of one request. Copies speak for the same answer. All members but post() belong to the connection's own
// loop: call them inside the handler, an on_close callback or a posted function. After the end or a disconnect every
// call is ignored.
class ResponseWriter {
 public:
  class Exchange;
  explicit ResponseWriter(std::shared_ptr<Exchange> exchange);

  // Headers that go out with whatever the answer will be; before send or begin_stream.
  void add_headers(const HttpHeaders& headers) const;

  // A word about the request for its AnswerReport, in place of an earlier one of that name.
  void note(const std::string& name, std::string value) const;
  void note(const std::string& name, std::int64_t count) const;

  // The whole answer. `content-length` and `connection` are added.
  void send(int status, const HttpHeaders& headers, std::string_view body) const;

  // A streamed answer with status 200: begin, any number of writes, end. A reader slower than the stream is cut off
  // once `max_stream_buffer_bytes` wait for it.
  void begin_stream(const HttpHeaders& headers) const;
  void write(std::string_view text) const;
  void end() const;

  bool closed() const;  // the client is gone, or the answer has ended
  // Runs once if the client goes away before the answer has ended.
  void on_close(std::function<void()> callback) const;
  // Keeps `resource`, in place of one held before, until the answer is sent whole or the client is gone.
  void hold(std::shared_ptr<const void> resource) const;
  // The client must have read the whole answer by then, or it is cut off.
  void send_within(std::chrono::milliseconds limit) const;
  // Runs `function` on the connection's loop; callable from any thread.
  void post(std::function<void()> function) const;

 private:
  std::shared_ptr<Exchange> exchange_;  // shared with the connection: either may end first
};

struct HttpServerOptions {
  std::string hostname = "0.0.0.0";
  std::int32_t port = 3000;                    // 0: any free one
  std::shared_ptr<const TlsContext> tls = {};  // null: plain HTTP; shared, as options are copied
  std::int32_t num_threads = 2;
  std::size_t max_connections = 8192;  // those beyond are answered 503, as long as they are few
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_body_bytes = std::size_t{2} << 20;
  std::size_t max_stream_buffer_bytes = std::size_t{1} << 20;
  std::chrono::milliseconds idle_timeout{75'000};  // between requests of a kept connection
  std::chrono::milliseconds header_timeout{
      10'000};  // from the first byte of a request to the end of its headers; of a handshake
  std::chrono::milliseconds body_timeout{60'000};        // from there to the end of its body
  std::chrono::milliseconds write_timeout{30'000};       // one write that makes no headway
  std::chrono::milliseconds keep_alive_comment{15'000};  // silence of a stream after which a comment line is sent
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, ResponseWriter)>;
  // Answers what never reached the handler or was failed by it: `status` is 400, 408, 413, 431, 500, 503 (too many
  // connections) or 505; `request` holds what was read of it, after a 500 method and path alone.
  using FaultHandler = std::function<void(int status, const HttpRequest& request, ResponseWriter)>;

  // Hears of each answer, once, at its end; on the connection's loop.
  using EndHandler = std::function<void(const AnswerReport&)>;

  // Binds, listens and serves at once. Throws StartError when the address cannot be bound. Handlers run on the
  // server's threads, must not block for long, and answer 500 by throwing.
  HttpServer(HttpServerOptions options, Handler handler, FaultHandler fault_handler, EndHandler end_handler = {});
  ~HttpServer();  // stop() without grace
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::int32_t port() const;
  std::size_t num_connections() const;

  // No new connections; idle ones close at once, answers under way have `grace` to end. Idempotent.
  void stop(std::chrono::milliseconds grace);

  class Core;

 private:
  std::shared_ptr<Core> core_;  // shared with connections, which a late post() may outlive
};

// "OK" of 200.
std::string_view status_text(int status);

}  // namespace shoal
