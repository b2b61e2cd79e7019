#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/result.h"
#include "server/http_format.h"

namespace shoal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using RequestParser = http::request_parser<http::string_body>;
using boost::system::error_code;

namespace {

constexpr auto kAcceptRetry = std::chrono::milliseconds(50);
constexpr auto kLinger = std::chrono::milliseconds(3000);
constexpr auto kAbortWait = std::chrono::milliseconds(2000);

class Connection;

}  // namespace

class HttpServer::Core {
 public:
  Core(HttpServerOptions server_options, HttpServer::Handler request_handler, HttpServer::FaultHandler on_fault)
      : options(std::move(server_options)),
        handler(std::move(request_handler)),
        fault_handler(std::move(on_fault)),
        acceptor(asio::make_strand(io)) {}

  void remove(const Connection* connection) {
    const std::lock_guard lock(mutex);
    connections.erase(connection);
    all_closed.notify_all();
  }

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  const HttpServer::FaultHandler fault_handler;
  asio::io_context io;
  tcp::acceptor acceptor;
  std::int32_t port = 0;
  std::vector<std::jthread> threads;
  std::atomic<bool> stopping{false};
  std::atomic<bool> stopped{false};  // the loop will not run again
  mutable std::mutex mutex;
  std::condition_variable all_closed;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections;  // guarded by mutex
};

// One answer, shared by the connection and the writers of its handler.
class ResponseWriter::Exchange {
 public:
  Exchange(std::shared_ptr<Connection> owner, bool answer_to_head)
      : connection(std::move(owner)), head(answer_to_head) {}

  const std::shared_ptr<Connection> connection;
  const bool head;  // send no body
  HttpHeaders extra_headers;
  bool begun = false;      // a status line was written
  bool streaming = false;  // begun and not ended
  bool done = false;       // ended, or nobody is there to read it
  std::function<void()> on_close;
};

namespace {

using Exchange = ResponseWriter::Exchange;

// All members run on the strand of `socket_`. Two coroutines: read_loop() alone reads, so that a disconnect is seen at
// any stage; serve() parses, calls the handler and writes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Core> core, tcp::socket socket)
      : core_(std::move(core)),
        socket_(std::move(socket)),
        wake_(socket_.get_executor()),
        resume_read_(socket_.get_executor()),
        write_deadline_(socket_.get_executor()) {
    error_code ignored;
    const auto endpoint = socket_.remote_endpoint(ignored);
    peer_ = fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  }

  void start() {
    asio::co_spawn(socket_.get_executor(), [self = shared_from_this()] { return self->read_loop(); }, asio::detached);
    asio::co_spawn(socket_.get_executor(), [self = shared_from_this()] { return self->serve(); }, asio::detached);
  }

  auto executor() { return socket_.get_executor(); }
  const std::shared_ptr<HttpServer::Core>& core() const { return core_; }

  void stop() {
    keep_open_ = false;
    notify();
  }

  // Ends everything now; the handler of an answer under way hears of it.
  void abort() {
    error_code ignored;
    socket_.close(ignored);
    broken_ = true;
    drop_exchange();
    notify();
  }

  void append(std::string_view bytes) {
    output_.append(bytes);
    notify();
  }
  std::size_t unsent_bytes() const { return output_.size(); }
  void notify() { wake_.cancel(); }

  // The status line and headers of the current answer.
  void append_head(const Exchange& exchange, int status, const HttpHeaders& headers,
                   std::optional<std::size_t> content_length) {
    if (core_->stopping) keep_open_ = false;
    if (!content_length && !chunked_) keep_open_ = false;  // HTTP/1.0: the end of the stream is the close
    append_response_head(output_, {.status = status, .keep_open = keep_open_, .http10 = http10_}, headers,
                         content_length);
    append_headers(output_, exchange.extra_headers);
    if (!content_length && chunked_ && !exchange.head) output_ += "transfer-encoding: chunked\r\n";
    output_ += "\r\n";
  }
  bool chunked() const { return chunked_; }

 private:
  enum class ReadOutcome { kRequest, kClosed, kFault };

  asio::awaitable<void> read_loop() {
    const auto self = shared_from_this();
    const std::size_t max_input_bytes = core_->options.max_body_bytes + core_->options.max_header_bytes;
    std::array<char, 8192> chunk;
    for (;;) {
      while (input_.size() > max_input_bytes && !broken_) {
        resume_read_.expires_at(Clock::time_point::max());
        co_await resume_read_.async_wait(asio::as_tuple(asio::use_awaitable));
      }
      const auto [error, count] =
          co_await socket_.async_read_some(asio::buffer(chunk), asio::as_tuple(asio::use_awaitable));
      if (error) break;
      if (!discard_input_) input_.append(chunk.data(), count);
      notify();
    }
    read_closed_ = true;
    notify();
  }

  asio::awaitable<void> serve() {
    const auto self = shared_from_this();
    try {
      co_await serve_requests();
    } catch (const std::exception& error) {
      spdlog::error("connection of {}: {}", peer_, error.what());
    }
    drop_exchange();
    broken_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    resume_read_.cancel();
    core_->remove(this);
  }

  asio::awaitable<void> serve_requests() {
    while (keep_open_ && !broken_) {
      RequestParser parser;
      parser.eager(true);
      parser.header_limit(static_cast<std::uint32_t>(core_->options.max_header_bytes));
      parser.body_limit(core_->options.max_body_bytes);
      fault_status_ = 400;
      const ReadOutcome outcome = co_await read_request(parser);
      if (outcome == ReadOutcome::kClosed) co_return;
      const bool faulty = outcome == ReadOutcome::kFault;
      const auto& message = parser.get();
      http10_ = message.version() < 11;
      chunked_ = !http10_;
      keep_open_ = keep_open_ && !faulty && message.keep_alive();
      dispatch(parser, faulty);
      if (!co_await pump_response()) co_return;
      if (faulty) co_await linger();
    }
  }

  // Feeds the parser from input_, within the time limits.
  asio::awaitable<ReadOutcome> read_request(RequestParser& parser) {
    const HttpServerOptions& options = core_->options;
    auto deadline = Clock::now() + options.idle_timeout;
    bool begun = false;
    bool header_done = false;
    for (;;) {
      if (!begun) input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
      if (!input_.empty()) {
        if (!begun) deadline = Clock::now() + options.header_timeout;
        begun = true;
        error_code error;
        const std::size_t used = parser.put(asio::buffer(input_), error);
        input_.erase(0, used);
        resume_read_.cancel();
        if (error && error != http::error::need_more) co_return parse_fault(error);
        if (parser.is_done()) co_return ReadOutcome::kRequest;
        if (!header_done && parser.is_header_done()) {
          header_done = true;
          deadline = Clock::now() + options.body_timeout;
          if (wants_continue(parser) && !co_await write_now("HTTP/1.1 100 Continue\r\n\r\n")) {
            co_return ReadOutcome::kClosed;
          }
          continue;
        }
      }
      if (read_closed_ || broken_ || (!begun && !keep_open_)) co_return ReadOutcome::kClosed;
      const bool woken = co_await wait_until(deadline);
      if (!woken && Clock::now() >= deadline) {
        if (!begun) co_return ReadOutcome::kClosed;
        fault_status_ = 408;
        co_return ReadOutcome::kFault;
      }
    }
  }

  ReadOutcome parse_fault(const error_code& error) {
    if (error == http::error::header_limit) {
      fault_status_ = 431;
    } else if (error == http::error::body_limit) {
      fault_status_ = 413;
    } else if (error == http::error::bad_version) {
      fault_status_ = 505;
    }
    return ReadOutcome::kFault;
  }

  bool wants_continue(const RequestParser& parser) const {
    const auto& message = parser.get();
    return input_.empty() && message.version() >= 11 &&
           boost::beast::iequals(message[http::field::expect], "100-continue");
  }

  HttpRequest take_request(RequestParser& parser) const {
    auto& message = parser.get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    split_target(std::string_view(message.target().data(), message.target().size()), request.path, request.query);
    for (const auto& field : message) {
      request.headers.emplace_back(lower_case(std::string_view(field.name_string())), std::string(field.value()));
    }
    request.body = std::move(message.body());
    request.peer = peer_;
    return request;
  }

  void dispatch(RequestParser& parser, bool faulty) {
    HttpRequest request = take_request(parser);
    exchange_ = std::make_shared<Exchange>(shared_from_this(), request.method == "HEAD");
    const ResponseWriter writer(exchange_);
    try {
      if (faulty) {
        core_->fault_handler(fault_status_, request, writer);
      } else {
        core_->handler(std::move(request), writer);
      }
    } catch (const std::exception& error) {
      spdlog::error("handler failed: {}", error.what());
      if (exchange_ && exchange_->begun) {
        abort();
      } else {
        writer.send(500, {{"content-type", "application/json"}},
                    R"({"error":"internal server error","error_type":"internal"})");
      }
    }
  }

  // Writes what the handler produces until the answer has ended; false when the client is gone.
  asio::awaitable<bool> pump_response() {
    auto last_write = Clock::now();
    for (;;) {
      if (broken_) co_return false;
      if (!output_.empty()) {
        std::string sending;
        sending.swap(output_);
        if (!co_await write_now(sending)) co_return false;
        last_write = Clock::now();
        continue;
      }
      if (!exchange_ || exchange_->done) {
        exchange_.reset();
        co_return true;
      }
      if (read_closed_) {
        abort();
        co_return false;
      }
      const bool streaming = exchange_->streaming;
      const auto comment_due = last_write + core_->options.keep_alive_comment;
      if (streaming && Clock::now() >= comment_due) {
        ResponseWriter(exchange_).write(":\n\n");
        continue;
      }
      co_await wait_until(streaming ? comment_due : Clock::time_point::max());
    }
  }

  asio::awaitable<bool> write_now(std::string_view bytes) {
    while (!bytes.empty()) {
      write_deadline_.expires_after(core_->options.write_timeout);
      write_deadline_.async_wait([weak = weak_from_this()](error_code error) {
        if (const auto self = weak.lock(); self && !error) self->abort();
      });
      const auto [error, count] = co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                                                                    asio::as_tuple(asio::use_awaitable));
      write_deadline_.cancel();
      if (error) {
        abort();
        co_return false;
      }
      bytes.remove_prefix(count);
    }
    co_return !broken_;
  }

  // Lets the client read the answer to a request that it is still sending: closing at once would reset it away.
  asio::awaitable<void> linger() {
    discard_input_ = true;
    input_.clear();
    resume_read_.cancel();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    const auto deadline = Clock::now() + kLinger;
    while (!read_closed_ && !broken_ && Clock::now() < deadline) co_await wait_until(deadline);
  }

  asio::awaitable<bool> wait_until(Clock::time_point deadline) {
    wake_.expires_at(deadline);
    const auto [error] = co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
    co_return error == asio::error::operation_aborted;
  }

  void drop_exchange() {
    const auto exchange = std::exchange(exchange_, nullptr);
    if (!exchange || exchange->done) return;
    exchange->done = true;
    if (const auto callback = std::exchange(exchange->on_close, nullptr)) callback();
  }

  const std::shared_ptr<HttpServer::Core> core_;
  tcp::socket socket_;
  asio::steady_timer wake_;         // what serve() sleeps on
  asio::steady_timer resume_read_;  // what read_loop() sleeps on while input_ is full
  asio::steady_timer write_deadline_;
  std::string peer_;
  std::string input_;                   // received, not yet parsed
  std::string output_;                  // to be sent
  std::shared_ptr<Exchange> exchange_;  // the answer under way; its writers may outlive it
  int fault_status_ = 400;
  bool read_closed_ = false;  // end of input: the client is gone, or as good as
  bool broken_ = false;       // the socket is closed
  bool keep_open_ = true;     // another request may follow
  bool discard_input_ = false;
  bool http10_ = false;
  bool chunked_ = true;
};

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
    const auto connection = std::make_shared<Connection>(core, std::move(socket));
    {
      const std::lock_guard lock(core->mutex);
      if (core->connections.size() >= core->options.max_connections) continue;
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
  try {
    core.acceptor.open(endpoint.protocol());
    core.acceptor.set_option(tcp::acceptor::reuse_address(true));
    core.acceptor.bind(endpoint);
    core.acceptor.listen(4096);
    core.port = core.acceptor.local_endpoint().port();
  } catch (const std::exception& failure) {
    throw StartError(fmt::format("cannot listen on {}:{}: {}", options.hostname, options.port, failure.what()));
  }
}

}  // namespace

HttpServer::HttpServer(HttpServerOptions options, Handler handler, FaultHandler fault_handler)
    : core_(std::make_shared<Core>(std::move(options), std::move(handler), std::move(fault_handler))) {
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
  const auto tell_all = [core = core_.get()](void (Connection::*action)()) {
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
  tell_all(&Connection::stop);
  if (!wait_all(grace)) {
    tell_all(&Connection::abort);
    wait_all(kAbortWait);
  }
  core_->io.stop();
  core_->threads.clear();
  // What was posted meanwhile holds connections, which hold the loop: run it out, or neither is ever freed.
  core_->stopped = true;
  core_->io.restart();
  core_->io.poll();
}

ResponseWriter::ResponseWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

void ResponseWriter::add_headers(const HttpHeaders& headers) const {
  exchange_->extra_headers.insert(exchange_->extra_headers.end(), headers.begin(), headers.end());
}

void ResponseWriter::send(int status, const HttpHeaders& headers, std::string_view body) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->done = true;
  exchange_->on_close = nullptr;
  Connection& connection = *exchange_->connection;
  connection.append_head(*exchange_, status, headers, body.size());
  connection.append(exchange_->head ? std::string_view() : body);
}

void ResponseWriter::begin_stream(const HttpHeaders& headers) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->streaming = true;
  exchange_->connection->append_head(*exchange_, 200, headers, std::nullopt);
  exchange_->connection->notify();
}

void ResponseWriter::write(std::string_view text) const {
  if (exchange_->done || !exchange_->streaming || text.empty()) return;
  Connection& connection = *exchange_->connection;
  if (connection.unsent_bytes() + text.size() > connection.core()->options.max_stream_buffer_bytes) {
    spdlog::warn("a client reads its stream too slowly: closed");
    connection.abort();
    return;
  }
  connection.append(connection.chunked() ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::string(text));
}

void ResponseWriter::end() const {
  if (exchange_->done || !exchange_->streaming) return;
  exchange_->streaming = false;
  exchange_->done = true;
  exchange_->on_close = nullptr;
  exchange_->connection->append(exchange_->connection->chunked() ? "0\r\n\r\n" : "");
}

bool ResponseWriter::closed() const { return exchange_->done; }

void ResponseWriter::on_close(std::function<void()> callback) const {
  if (!exchange_->done) exchange_->on_close = std::move(callback);
}

void ResponseWriter::post(std::function<void()> function) const {
  if (exchange_->connection->core()->stopped) return;
  asio::post(exchange_->connection->executor(), [exchange = exchange_, function = std::move(function)] {
    try {
      function();
    } catch (const std::exception& error) {
      spdlog::error("answer failed: {}", error.what());
      exchange->connection->abort();
    }
  });
}

}  // namespace shoal
