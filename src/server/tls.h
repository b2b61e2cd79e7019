// TlsContext: what TLS connections are made with, read again when its files change. OpenSSL without Boost. Made by cli
// for HttpServerOptions, used by http_connection.cc.
#pragma once

#include <openssl/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "server/file_watch.h"

namespace shoal {

struct TlsFiles {
  std::filesystem::path certificate = {};  // PEM: the server's first, then those between it and its authority
  std::filesystem::path key = {};          // PEM, not encrypted
  std::filesystem::path client_ca = {};  // PEM: who vouches for clients, which must then show a certificate; empty: any
};

class TlsContext {
 public:
  // Reads the files, and looks at them from then on: what they hold counts for new connections once they have changed
  // and fit each other; until then what they held before does. StartError names the file and what is wrong with it.
  explicit TlsContext(TlsFiles files, std::chrono::milliseconds poll_interval = std::chrono::milliseconds(1000));
  ~TlsContext() = default;
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  struct FreeConnection {
    void operator()(SSL* connection) const;
  };
  using Connection = std::unique_ptr<SSL, FreeConnection>;
  // The server's side of a new connection; any thread. std::bad_alloc where there is no memory for it.
  Connection new_connection() const;

  std::int64_t num_failed_reads() const { return num_failed_reads_; }

 private:
  // Shared with the connections' making: a replaced one goes with the last of them.
  using Settings = std::shared_ptr<SSL_CTX>;
  static Settings read(const TlsFiles& files);
  void read_again();

  const TlsFiles files_;
  std::atomic<std::int64_t> num_failed_reads_{0};
  mutable std::mutex mutex_;
  Settings settings_;  // guarded by mutex_
  FileWatch watch_;    // last: it uses all above
};

}  // namespace shoal
