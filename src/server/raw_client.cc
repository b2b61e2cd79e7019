#include "server/raw_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/test_patience.h"
#include "server/test_certificates.h"

namespace shoal::test {

namespace {

constexpr int kPatienceMs = static_cast<int>(kPatience.count());

}  // namespace

RawClient::RawClient(std::int32_t port, const TlsClient* tls)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  // What waits inside OpenSSL cannot be polled for.
  const timeval patience = {.tv_sec = kPatienceMs / 1000, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (tls == nullptr) return;
  tls_ = tls->over(socket_);
  failed_ = SSL_connect(tls_) != 1;
}

RawClient::RawClient(RawClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      tls_(std::exchange(other.tls_, nullptr)),
      failed_(other.failed_),
      input_(std::move(other.input_)) {}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = tls_ == nullptr ? ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL)
                                         : SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void RawClient::get(const std::string& path, const std::string& extra_headers) const {
  send("GET " + path + " HTTP/1.1\r\nhost: test\r\n" + extra_headers + "\r\n");
}

void RawClient::post(const std::string& path, const std::string& json, const std::string& extra_headers) const {
  send("POST " + path + " HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n" + extra_headers +
       "content-length: " + std::to_string(json.size()) + "\r\n\r\n" + json);
}

std::int64_t RawClient::receive(char* bytes, std::size_t count) const {
  errno = 0;
  const std::int64_t received =
      tls_ == nullptr ? ::recv(socket_, bytes, count, 0) : SSL_read(tls_, bytes, static_cast<int>(count));
  if (received < 0 && errno == EAGAIN) ADD_FAILURE() << "the server sends nothing";
  return received;
}

bool RawClient::fill() {
  char chunk[16384];
  const std::int64_t count = receive(chunk, sizeof chunk);
  if (count <= 0) return false;
  input_.append(chunk, static_cast<std::size_t>(count));
  return true;
}

std::optional<std::string> RawClient::read_line() {
  std::size_t end = 0;
  while ((end = input_.find("\r\n")) == std::string::npos) {
    if (!fill()) return std::nullopt;
  }
  std::string line = input_.substr(0, end);
  input_.erase(0, end + 2);
  return line;
}

std::optional<std::string> RawClient::read_exactly(std::size_t count) {
  while (input_.size() < count) {
    if (!fill()) return std::nullopt;
  }
  std::string bytes = input_.substr(0, count);
  input_.erase(0, count);
  return bytes;
}

RawResponse RawClient::read_head() {
  RawResponse response;
  const auto status_line = read_line();
  if (!status_line || status_line->size() < 12) return response;
  for (;;) {
    const auto line = read_line();
    if (!line) return response;
    if (line->empty()) break;
    const std::size_t colon = line->find(": ");
    if (colon == std::string::npos) {
      ADD_FAILURE() << "not a header: " << *line;
      return response;
    }
    response.headers[line->substr(0, colon)] = line->substr(colon + 2);
  }
  response.status = std::stoi(status_line->substr(9, 3));
  return response;
}

bool RawClient::read_chunk() {
  const auto size_line = read_line();
  if (!size_line) return false;
  const std::size_t size = std::stoul(*size_line, nullptr, 16);
  const auto bytes = read_exactly(size + 2);
  if (!bytes || size == 0) {
    stream_ended_ = true;
    return false;
  }
  stream_text_ += bytes->substr(0, size);
  return true;
}

RawResponse RawClient::read_response(bool to_head) {
  RawResponse response = read_head();
  if (response.status == 100) response = read_head();
  if (response.status == 0 || to_head) return response;
  if (response.headers.contains("transfer-encoding")) {
    while (read_chunk()) {
    }
    response.body = std::exchange(stream_text_, "");
  } else if (response.headers.contains("content-length")) {
    const auto body = read_exactly(std::stoul(response.headers["content-length"]));
    if (!body) return {};
    response.body = *body;
  } else {
    while (fill()) {
    }
    response.body = std::exchange(input_, "");
  }
  return response;
}

std::optional<std::string> RawClient::read_event() {
  std::size_t end = 0;
  while ((end = stream_text_.find("\n\n")) == std::string::npos) {
    if (stream_ended_ || !read_chunk()) return std::nullopt;
  }
  std::string event = stream_text_.substr(0, end);
  stream_text_.erase(0, end + 2);
  return event;
}

bool RawClient::closed_by_server() {
  if (!input_.empty()) return false;
  char byte = 0;
  return receive(&byte, 1) <= 0 && errno != EAGAIN;
}

void RawClient::close() {
  SSL_free(std::exchange(tls_, nullptr));
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void RawClient::half_close() const {
  if (tls_ != nullptr) SSL_shutdown(tls_);
  ::shutdown(socket_, SHUT_WR);
}

void RawClient::reset() {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

RawResponse get(std::int32_t port, const std::string& path, const std::string& extra_headers, const TlsClient* tls) {
  RawClient client(port, tls);
  client.get(path, extra_headers);
  return client.read_response();
}

RawResponse post(std::int32_t port, const std::string& path, const std::string& json, const std::string& extra_headers,
                 const TlsClient* tls) {
  RawClient client(port, tls);
  client.post(path, json, extra_headers);
  return client.read_response();
}

}  // namespace shoal::test
