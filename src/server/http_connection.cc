// The life of a connection: it begins, serves its requests in turn, and ends.
#include "server/http_connection.h"

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
      stream_(std::move(socket)),
      wake_(executor()),
      resume_read_(executor()),
      abort_timer_(executor()),
      peer_(stream_.peer()) {}

void HttpConnection::start() {
  asio::co_spawn(executor(), [self = shared_from_this()] { return self->serve(); }, asio::detached);
}

void HttpConnection::stop() {
  keep_open_ = false;
  if (shaking_hands_) abort();
  notify();
}

void HttpConnection::abort() {
  stream_.close();
  broken_ = true;
  drop_exchange();
  notify();
}

void HttpConnection::abort_at(Clock::time_point deadline) {
  abort_timer_.expires_at(deadline);
  abort_timer_.async_wait([weak = weak_from_this()](error_code error) {
    if (const auto self = weak.lock(); self && !error) self->abort();
  });
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
    const auto [error, count] = co_await stream_.read_some(asio::buffer(chunk));
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
    const bool understood = core_->options.tls == nullptr || co_await shake_hands();
    asio::co_spawn(executor(), [self] { return self->read_loop(); }, asio::detached);
    if (understood) {
      co_await serve_requests();
    } else {
      co_await linger();
    }
    if (!broken_) co_await end_output();
  } catch (const std::exception& error) {
    spdlog::error("connection of {}: {}", peer_, error.what());
  }
  drop_exchange();
  broken_ = true;
  stream_.close();
  resume_read_.cancel();
  core_->remove(this);
}

asio::awaitable<bool> HttpConnection::shake_hands() {
  if (!keep_open_) abort();  // stopped before it began
  if (broken_) co_return false;
  shaking_hands_ = true;
  abort_at(Clock::now() + core_->options.header_timeout);
  const error_code error = co_await stream_.handshake(core_->options.tls->new_connection());
  abort_timer_.cancel();
  shaking_hands_ = false;
  // Scanners and plain HTTP are nothing that an operator could mend.
  if (error) spdlog::debug("TLS handshake with {}: {}", peer_, broken_ ? "took too long" : error.message());
  co_return !error;
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
  co_await end_output();
  const auto deadline = Clock::now() + kLinger;
  while (!read_closed_ && !broken_ && Clock::now() < deadline) co_await wait_until(deadline);
}

asio::awaitable<void> HttpConnection::end_output() {
  if (stream_.is_tls()) abort_at(Clock::now() + core_->options.write_timeout);
  co_await stream_.end_output();
  abort_timer_.cancel();
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
