#include "server/http_stream.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <utility>

namespace shoal {

namespace asio = boost::asio;
using asio::ip::tcp;

HttpStream::HttpStream(tcp::socket socket) : socket_(std::move(socket)) {
  Error ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

std::string HttpStream::peer() const {
  Error ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  return fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

asio::awaitable<HttpStream::Error> HttpStream::handshake(TlsContext::Connection connection) {
  tls_ = std::make_unique<asio::ssl::stream<tcp::socket&>>(socket_, connection.release());
  const auto [error] =
      co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::as_tuple(asio::use_awaitable));
  if (error) tls_ = nullptr;
  co_return error;
}

asio::awaitable<HttpStream::Transfer> HttpStream::read_some(asio::mutable_buffer bytes) {
  constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
  return tls_ ? tls_->async_read_some(bytes, kToken) : socket_.async_read_some(bytes, kToken);
}

asio::awaitable<HttpStream::Transfer> HttpStream::write_some(asio::const_buffer bytes) {
  constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
  return tls_ ? tls_->async_write_some(bytes, kToken) : socket_.async_write_some(bytes, kToken);
}

bool HttpStream::takes_bytes() {
  pollfd socket = {.fd = socket_.native_handle(), .events = POLLOUT, .revents = 0};
  return poll(&socket, 1, 0) == 1 && (socket.revents & POLLOUT) != 0;
}

asio::awaitable<void> HttpStream::end_output() {
  if (std::exchange(output_ended_, true)) co_return;
  if (tls_) co_await send_close_notify();
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> HttpStream::send_close_notify() {
  SSL* const connection = tls_->native_handle();
  asio::steady_timer sent(socket_.get_executor(), asio::steady_timer::time_point::max());
  // Asio's shutdown waits for the client's goodbye as well, which one that keeps connections for later may never send.
  // So OpenSSL is told that it has come, for as long as it is asked: that is now, before async_shutdown returns.
  const int come = SSL_get_shutdown(connection);
  SSL_set_shutdown(connection, come | SSL_RECEIVED_SHUTDOWN);
  tls_->async_shutdown([&sent](const Error& /*sent or gone*/) { sent.cancel(); });
  SSL_set_shutdown(connection, come | SSL_SENT_SHUTDOWN);
  co_await sent.async_wait(asio::as_tuple(asio::use_awaitable));
}

void HttpStream::close() {
  Error ignored;
  socket_.close(ignored);
}

}  // namespace shoal
