// The life of a connection: it begins, serves its requests in turn, and ends.
#include "server/http_connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>

namespace shoal {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kLinger = std::chrono::milliseconds(3000);
constexpr std::size_t kLargeBody = std::size_t{64} << 10;  // some 20 ms of parsing and tokenizing

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

}  // namespace shoal
