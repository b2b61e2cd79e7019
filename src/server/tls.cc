#include "server/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/result.h"

namespace shoal {

namespace {

constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 20;
// Of TLS 1.2; each has forward secrecy. Those of 1.3 all do.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";
// As extensions carry it: a byte of length before the name.
constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
constexpr unsigned char kSessionId[] = {'s', 'h', 'o', 'a', 'l'};

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Deleter<SSL_CTX_free>>;

// The reason of OpenSSL's last error, which is forgotten.
std::string last_reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason == nullptr ? "unknown reason" : reason;
  ERR_clear_error();
  return text;
}

Bio over(std::string_view text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::string text_of(BIO* bio) {
  char* text = nullptr;
  const auto num_bytes = BIO_get_mem_data(bio, &text);
  return {text, static_cast<std::size_t>(num_bytes)};
}

std::string text_of(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  return ASN1_TIME_print(bio.get(), time) == 1 ? text_of(bio.get()) : "a time that is none";
}

// "CN=api.example"
std::string subject_of(const X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  return text_of(bio.get());
}

std::vector<Certificate> read_certificates(const std::string& what, const std::filesystem::path& path) {
  const std::string text = read_small_file(what, path, kMaxFileBytes);
  const std::string place = fmt::format("{} {}: ", what, path.string());
  const Bio bio = over(text);
  std::vector<Certificate> found;
  for (;;) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    found.push_back(std::move(next));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = last_reason();
  if (!at_end) throw StartError(fmt::format("{}certificate {} cannot be read: {}", place, found.size() + 1, reason));
  if (found.empty()) throw StartError(place + "holds no certificate in PEM");
  return found;
}

// The server's and those between it and its authority: clients refuse either once its time is over.
void check_times(const std::filesystem::path& path, const std::vector<Certificate>& chain) {
  std::size_t number = 0;
  for (const Certificate& each : chain) {
    const std::string place =
        fmt::format("TLS certificate file {}: certificate {} ({})", path.string(), ++number, subject_of(each.get()));
    const ASN1_TIME* const begin = X509_get0_notBefore(each.get());
    const ASN1_TIME* const end = X509_get0_notAfter(each.get());
    if (X509_cmp_current_time(end) <= 0) throw StartError(fmt::format("{} expired on {}", place, text_of(end)));
    if (X509_cmp_current_time(begin) > 0) throw StartError(fmt::format("{} begins on {}", place, text_of(begin)));
  }
}

PrivateKey read_key(const std::filesystem::path& path) {
  std::string text = read_small_file("TLS key file", path, kMaxFileBytes);
  bool encrypted = false;
  // Without it OpenSSL would ask the terminal.
  const auto on_passphrase = [](char* /*buffer*/, int /*size*/, int /*rwflag*/, void* asked) {
    *static_cast<bool*>(asked) = true;
    return -1;
  };
  PrivateKey key(PEM_read_bio_PrivateKey(over(text).get(), nullptr, on_passphrase, &encrypted));
  OPENSSL_cleanse(text.data(), text.size());
  ERR_clear_error();
  if (encrypted)
    throw StartError(fmt::format("TLS key file {}: is encrypted, expected a key without passphrase", path.string()));
  if (key == nullptr) throw StartError(fmt::format("TLS key file {}: holds no private key in PEM", path.string()));
  return key;
}

// HTTP/1.1 is all that is spoken: a client that offers only others hears so now.
int choose_protocol(SSL* /*connection*/, const unsigned char** chosen, unsigned char* chosen_bytes,
                    const unsigned char* offered, unsigned int offered_bytes, void* /*unused*/) {
  unsigned char* found = nullptr;
  const int outcome = SSL_select_next_proto(&found, chosen_bytes, kHttp11, sizeof kHttp11, offered, offered_bytes);
  if (outcome != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

Context make_context() {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) throw StartError("TLS cannot be set up: " + last_reason());
  CHECK(SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) == 1);
  CHECK(SSL_CTX_set_cipher_list(context.get(), kCiphers) == 1);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  // Sessions go on by tickets, which clients keep: no memory here, and none survives a change of the files.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  CHECK(SSL_CTX_set_session_id_context(context.get(), kSessionId, sizeof kSessionId) == 1);
  return context;
}

void ask_for_client_certificates(SSL_CTX* context, const std::filesystem::path& path) {
  for (const Certificate& authority : read_certificates("TLS client CA file", path)) {
    const bool added = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1 &&
                       SSL_CTX_add_client_CA(context, authority.get()) == 1;
    if (!added) throw StartError(fmt::format("TLS client CA file {}: {}", path.string(), last_reason()));
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

}  // namespace

TlsContext::Settings TlsContext::read(const TlsFiles& files) {
  const std::vector<Certificate> chain = read_certificates("TLS certificate file", files.certificate);
  check_times(files.certificate, chain);
  const PrivateKey key = read_key(files.key);
  const Certificate& own = chain.front();
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    ERR_clear_error();
    throw StartError(fmt::format("TLS key file {}: the key does not fit the certificate in {}", files.key.string(),
                                 files.certificate.string()));
  }
  Context context = make_context();
  bool taken = SSL_CTX_use_certificate(context.get(), own.get()) == 1;
  for (std::size_t i = 1; i < chain.size(); ++i) {
    taken = taken && SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) == 1;
  }
  taken = taken && SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1;
  if (!taken) {
    throw StartError(
        fmt::format("TLS certificate file {}: cannot be used: {}", files.certificate.string(), last_reason()));
  }
  if (!files.client_ca.empty()) ask_for_client_certificates(context.get(), files.client_ca);
  spdlog::info("TLS: certificate of {}, until {}{}", subject_of(own.get()), text_of(X509_get0_notAfter(own.get())),
               files.client_ca.empty() ? "" : "; clients must show one of their own");
  return {context.release(), SSL_CTX_free};
}

TlsContext::TlsContext(TlsFiles files, std::chrono::milliseconds poll_interval)
    : files_(std::move(files)), watch_({files_.certificate, files_.key, files_.client_ca}) {
  settings_ = read(files_);
  watch_.start(poll_interval, [this] { read_again(); });
}

void TlsContext::read_again() {
  try {
    Settings settings = read(files_);
    const std::lock_guard lock(mutex_);
    settings_ = std::move(settings);
  } catch (const std::exception& error) {
    ++num_failed_reads_;
    spdlog::error("TLS stays as it was: {}", error.what());
  }
}

TlsContext::Connection TlsContext::new_connection() const {
  Settings settings;
  {
    const std::lock_guard lock(mutex_);
    settings = settings_;
  }
  Connection connection(SSL_new(settings.get()));
  if (connection == nullptr) throw std::bad_alloc();
  return connection;
}

void TlsContext::FreeConnection::operator()(SSL* connection) const { SSL_free(connection); }

}  // namespace shoal
