// RawClient: a small blocking HTTP client that may also misbehave. Used by the tests of src/server.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::test {

class TlsClient;

struct RawResponse {
  int status = 0;  // 0: the connection ended before a whole answer came
  std::map<std::string, std::string> headers;
  std::string body;
};

class RawClient {
 public:
  // Over TLS where `tls` is given; a handshake that fails is told by has_failed(), and by all that comes after.
  explicit RawClient(std::int32_t port, const TlsClient* tls = nullptr);
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  RawClient& operator=(RawClient&&) = delete;

  bool send(std::string_view bytes) const;  // false: the server closed before it took them all
  void get(const std::string& path, const std::string& extra_headers = "") const;
  void post(const std::string& path, const std::string& json, const std::string& extra_headers = "") const;

  bool has_failed() const { return failed_; }  // the handshake
  SSL* tls() const { return tls_; }            // null: plain

  // The next answer; with `to_head` it has no body. Reading gives up after ten seconds.
  RawResponse read_response(bool to_head = false);
  RawResponse read_head();                  // of a stream, or of any answer
  std::optional<std::string> read_event();  // the text up to the next empty line of a stream; none: it ended
  bool closed_by_server();                  // nothing more comes, and the connection is closed

  void close();
  void half_close() const;  // no more from us, with TLS's goodbye
  void reset();             // closes without goodbye: RST

 private:
  bool fill();
  // As recv: 0 at the end of the connection, less where it broke.
  std::int64_t receive(char* bytes, std::size_t count) const;
  std::optional<std::string> read_line();
  std::optional<std::string> read_exactly(std::size_t count);
  bool read_chunk();

  int socket_ = -1;
  SSL* tls_ = nullptr;  // owned
  bool failed_ = false;
  std::string input_;
  std::string stream_text_;  // unchunked, not yet taken as events
  bool stream_ended_ = false;
};

// One request on a connection of its own.
RawResponse get(std::int32_t port, const std::string& path, const std::string& extra_headers = "",
                const TlsClient* tls = nullptr);
RawResponse post(std::int32_t port, const std::string& path, const std::string& json,
                 const std::string& extra_headers = "", const TlsClient* tls = nullptr);

}  // namespace shoal::test
