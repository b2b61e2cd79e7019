// HttpStream: the bytes of a connection, over TLS or plain. Used by HttpConnection, which need not know which.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <tuple>

#include "server/boost.h"
#include "server/tls.h"

namespace shoal {

// All members run on the strand of its socket. One read and one write may be under way at once.
class HttpStream {
 public:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Error = boost::system::error_code;
  using Transfer = std::tuple<Error, std::size_t>;  // how it ended, bytes moved

  explicit HttpStream(boost::asio::ip::tcp::socket socket);

  auto executor() { return socket_.get_executor(); }
  std::string peer() const;  // "address:port"
  bool is_tls() const { return tls_ != nullptr; }

  // The server's part of a handshake, before anything is read or written. Where it fails the stream is a plain one, of
  // which nothing should be believed.
  Awaitable<Error> handshake(TlsContext::Connection connection);

  // Not coroutines of their own: a plain stream costs a branch more than its socket.
  Awaitable<Transfer> read_some(boost::asio::mutable_buffer bytes);
  Awaitable<Transfer> write_some(boost::asio::const_buffer bytes);

  // Whether the socket has room: what still waits then waits for this process, not for the client.
  bool takes_bytes();

  // Tells the client that nothing more comes; what it sends can still be read. After the last write; more calls do
  // nothing.
  Awaitable<void> end_output();
  // At once, without goodbye; what is under way fails.
  void close();

 private:
  Awaitable<void> send_close_notify();

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;  // null: plain
  bool output_ended_ = false;
};

}  // namespace shoal
