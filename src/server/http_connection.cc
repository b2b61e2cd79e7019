#include "server/http_connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>

#include "server/http_format.h"

namespace shoal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Exchange = ResponseWriter::Exchange;

namespace {

constexpr auto kLinger = std::chrono::milliseconds(3000);
constexpr std::size_t kLargeBody = std::size_t{64} << 10;  // some 20 ms of parsing and tokenizing

template <typename Value>
void set_named(std::vector<std::pair<std::string, Value>>& list, const std::string& name, Value value) {
  const auto known = std::find_if(list.begin(), list.end(), [&](const auto& each) { return each.first == name; });
  if (known == list.end()) {
    list.emplace_back(name, std::move(value));
  } else {
    known->second = std::move(value);
  }
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpServer::Core> core, tcp::socket socket)
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

void HttpConnection::start() {
  asio::co_spawn(socket_.get_executor(), [self = shared_from_this()] { return self->read_loop(); }, asio::detached);
  asio::co_spawn(socket_.get_executor(), [self = shared_from_this()] { return self->serve(); }, asio::detached);
}

void HttpConnection::stop() {
  keep_open_ = false;
  notify();
}

void HttpConnection::abort() {
  error_code ignored;
  socket_.close(ignored);
  broken_ = true;
  drop_exchange();
  notify();
}

void HttpConnection::on_turn() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->left_the_queue_) return self->core_->large_request_turn.give_back();
    self->has_turn_ = true;
    self->notify();
  });
}

void HttpConnection::append(std::string_view bytes) {
  output_.append(bytes);
  notify();
}

void HttpConnection::append_head(const Exchange& exchange, int status, const HttpHeaders& headers,
                                 std::optional<std::size_t> content_length) {
  if (core_->stopping) keep_open_ = false;
  if (!content_length && !chunked_) keep_open_ = false;  // HTTP/1.0: the end of the stream is the close
  append_response_head(output_, {.status = status, .keep_open = keep_open_, .http10 = http10_}, headers,
                       content_length);
  append_headers(output_, exchange.extra_headers);
  if (!content_length && chunked_ && !exchange.head) output_ += "transfer-encoding: chunked\r\n";
  output_ += "\r\n";
}

asio::awaitable<void> HttpConnection::read_loop() {
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

asio::awaitable<void> HttpConnection::serve() {
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

asio::awaitable<void> HttpConnection::serve_requests() {
  while (keep_open_ && !broken_) {
    RequestParser parser;
    parser.eager(true);
    parser.header_limit(static_cast<std::uint32_t>(core_->options.max_header_bytes));
    parser.body_limit(core_->options.max_body_bytes);
    fault_status_ = 400;
    const ReadOutcome outcome = co_await read_request(parser);
    if (outcome == ReadOutcome::kClosed) co_return;
    if (turned_away_ && outcome == ReadOutcome::kRequest) fault_status_ = 503;
    const bool faulty = turned_away_ || outcome == ReadOutcome::kFault;
    const auto& message = parser.get();
    http10_ = message.version() < 11;
    chunked_ = !http10_;
    keep_open_ = keep_open_ && !faulty && message.keep_alive();
    const bool large = !faulty && message.body().size() > kLargeBody;
    if (large && !co_await wait_for_turn()) co_return;
    dispatch(parser, faulty);
    if (large) core_->large_request_turn.give_back();
    if (!co_await pump_response()) co_return;
    if (faulty) co_await linger();
  }
}

asio::awaitable<HttpConnection::ReadOutcome> HttpConnection::read_request(RequestParser& parser) {
  const HttpServerOptions& options = core_->options;
  auto deadline = Clock::now() + (turned_away_ ? options.header_timeout : options.idle_timeout);
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

HttpConnection::ReadOutcome HttpConnection::parse_fault(const error_code& error) {
  if (error == http::error::header_limit) {
    fault_status_ = 431;
  } else if (error == http::error::body_limit) {
    fault_status_ = 413;
  } else if (error == http::error::bad_version) {
    fault_status_ = 505;
  }
  return ReadOutcome::kFault;
}

bool HttpConnection::wants_continue(const RequestParser& parser) const {
  const auto& message = parser.get();
  return input_.empty() && message.version() >= 11 &&
         boost::beast::iequals(message[http::field::expect], "100-continue");
}

HttpRequest HttpConnection::take_request(RequestParser& parser) const {
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

void HttpConnection::dispatch(RequestParser& parser, bool faulty) {
  HttpRequest request = take_request(parser);
  exchange_ = std::make_shared<Exchange>(shared_from_this(), request.method == "HEAD");
  const ResponseWriter writer(exchange_);
  exchange_->report.method = request.method;
  exchange_->report.path = request.path;
  exchange_->report.peer = peer_;
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
      HttpRequest failed;
      if (exchange_) failed.path = exchange_->report.path;
      core_->fault_handler(500, failed, writer);
    }
  }
}

asio::awaitable<bool> HttpConnection::wait_for_turn() {
  has_turn_ = core_->large_request_turn.take([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self != nullptr) self->on_turn();
    return self != nullptr;
  });
  const auto client_left = [this] { return broken_ || read_closed_; };
  while (!has_turn_ && !client_left()) co_await wait_until(Clock::time_point::max());
  if (!client_left()) co_return true;
  // Nobody is left to read the answer: the request goes at once, and its turn passes on, now or when it comes.
  if (has_turn_) {
    core_->large_request_turn.give_back();
  } else {
    left_the_queue_ = true;
  }
  co_return false;
}

asio::awaitable<bool> HttpConnection::pump_response() {
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
      if (exchange_) exchange_->report.complete = true;
      drop_exchange();
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

asio::awaitable<bool> HttpConnection::write_now(std::string_view bytes) {
  while (!bytes.empty()) {
    auto deadline = Clock::now() + core_->options.write_timeout;
    if (exchange_ && exchange_->send_by) deadline = std::min(deadline, *exchange_->send_by);
    write_deadline_.expires_at(deadline);
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

asio::awaitable<void> HttpConnection::linger() {
  discard_input_ = true;
  input_.clear();
  resume_read_.cancel();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  const auto deadline = Clock::now() + kLinger;
  while (!read_closed_ && !broken_ && Clock::now() < deadline) co_await wait_until(deadline);
}

asio::awaitable<bool> HttpConnection::wait_until(Clock::time_point deadline) {
  wake_.expires_at(deadline);
  const auto [error] = co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
  co_return error == asio::error::operation_aborted;
}

void HttpConnection::drop_exchange() {
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!exchange) return;
  exchange->held.reset();
  if (!std::exchange(exchange->done, true)) {
    if (const auto callback = std::exchange(exchange->on_close, nullptr)) callback();
  }
  if (!core_->end_handler) return;
  exchange->report.duration = Clock::now() - exchange->received;
  core_->end_handler(exchange->report);
}

ResponseWriter::ResponseWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

void ResponseWriter::add_headers(const HttpHeaders& headers) const {
  exchange_->extra_headers.insert(exchange_->extra_headers.end(), headers.begin(), headers.end());
}

void ResponseWriter::note(const std::string& name, std::string value) const {
  set_named(exchange_->report.notes, name, std::move(value));
}

void ResponseWriter::note(const std::string& name, std::int64_t count) const {
  set_named(exchange_->report.counts, name, count);
}

void ResponseWriter::send(int status, const HttpHeaders& headers, std::string_view body) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->done = true;
  exchange_->on_close = nullptr;
  exchange_->report.status = status;
  exchange_->report.body_bytes = static_cast<std::int64_t>(body.size());
  HttpConnection& connection = *exchange_->connection;
  connection.append_head(*exchange_, status, headers, body.size());
  connection.append(exchange_->head ? std::string_view() : body);
}

void ResponseWriter::begin_stream(const HttpHeaders& headers) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->streaming = true;
  exchange_->report.status = 200;
  exchange_->connection->append_head(*exchange_, 200, headers, std::nullopt);
  exchange_->connection->notify();
}

void ResponseWriter::write(std::string_view text) const {
  if (exchange_->done || !exchange_->streaming || text.empty()) return;
  HttpConnection& connection = *exchange_->connection;
  if (connection.unsent_bytes() + text.size() > connection.core()->options.max_stream_buffer_bytes) {
    spdlog::warn("a client reads its stream too slowly: closed");
    connection.abort();
    return;
  }
  exchange_->report.body_bytes += static_cast<std::int64_t>(text.size());
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

void ResponseWriter::hold(std::shared_ptr<const void> resource) const {
  if (!exchange_->done) exchange_->held = std::move(resource);
}

void ResponseWriter::send_within(std::chrono::milliseconds limit) const {
  exchange_->send_by = std::chrono::steady_clock::now() + limit;
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
