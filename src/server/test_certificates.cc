#include "server/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <csignal>

#include "core/check.h"

namespace shoal::test {

namespace {

constexpr long kDay = 24L * 60 * 60;

using Bio = std::unique_ptr<BIO, decltype([](BIO* bio) { BIO_free_all(bio); })>;

std::string text_of(BIO* bio) {
  char* text = nullptr;
  const auto num_bytes = BIO_get_mem_data(bio, &text);
  return {text, static_cast<std::size_t>(num_bytes)};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  CHECK(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return text_of(bio.get());
}

std::shared_ptr<EVP_PKEY> key_of(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return {PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free};
}

std::shared_ptr<X509> certificate_of(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

void extend(X509* certificate, X509* issuer, int extension, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, &context, extension, value);
  CHECK(made != nullptr);
  CHECK(X509_add_ext(certificate, made, -1) == 1);
  X509_EXTENSION_free(made);
}

// Unsigned; `issuer` may be null for one that speaks for itself.
std::shared_ptr<X509> make_certificate(const CertificateOptions& options, EVP_PKEY* key, X509* issuer) {
  static std::atomic<long> serial{1};  // no two may be equal under one issuer
  std::shared_ptr<X509> made(X509_new(), X509_free);
  CHECK(X509_set_version(made.get(), 2) == 1);
  CHECK(ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial) == 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), options.begins_in_days * kDay);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), options.ends_in_days * kDay);
  X509_NAME* const name = X509_get_subject_name(made.get());
  const auto* const text = reinterpret_cast<const unsigned char*>(options.name.c_str());
  CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1);
  X509* const signs = issuer == nullptr ? made.get() : issuer;
  CHECK(X509_set_issuer_name(made.get(), X509_get_subject_name(signs)) == 1);
  CHECK(X509_set_pubkey(made.get(), key) == 1);
  extend(made.get(), signs, NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  return made;
}

}  // namespace

CertificateAuthority::CertificateAuthority() : key_(EVP_EC_gen("P-256"), EVP_PKEY_free) {
  static std::atomic<int> number{0};  // issuers are looked up by name
  certificate_ = make_certificate({.name = "authority " + std::to_string(++number)}, key_.get(), nullptr);
  CHECK(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
  pem_ = pem_of(certificate_.get());
}

IssuedCertificate CertificateAuthority::issue(const CertificateOptions& options) const {
  const std::shared_ptr<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::shared_ptr<X509> made = make_certificate(options, key.get(), certificate_.get());
  extend(made.get(), certificate_.get(), NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  CHECK(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0);
  return {.certificate = pem_of(made.get()), .key = pem_of(key.get())};
}

std::string encrypted(const std::string& key_pem) {
  const Bio bio(BIO_new(BIO_s_mem()));
  const auto* const phrase = reinterpret_cast<const unsigned char*>("secret");
  CHECK(PEM_write_bio_PrivateKey(bio.get(), key_of(key_pem).get(), EVP_aes_128_cbc(), phrase, 6, nullptr, nullptr) ==
        1);
  return text_of(bio.get());
}

TlsClient::TlsClient(const Options& options) : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  SSL_CTX* const context = context_.get();
  CHECK(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate_of(options.ca).get()) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_AUTO_RETRY);
  // Or old versions would be refused here, not by the server.
  SSL_CTX_set_security_level(context, 0);
  CHECK(SSL_CTX_set_max_proto_version(context, options.max_version) == 1);
  if (!options.own.certificate.empty()) {
    CHECK(SSL_CTX_use_certificate(context, certificate_of(options.own.certificate).get()) == 1);
    CHECK(SSL_CTX_use_PrivateKey(context, key_of(options.own.key).get()) == 1);
  }
  if (!options.protocol.empty()) {
    const std::string offer = static_cast<char>(options.protocol.size()) + options.protocol;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(offer.data());
    CHECK(SSL_CTX_set_alpn_protos(context, bytes, static_cast<unsigned>(offer.size())) == 0);
  }
}

SSL* TlsClient::over(int socket) const {
  SSL* const connection = SSL_new(context_.get());
  CHECK(connection != nullptr);
  CHECK(SSL_set_fd(connection, socket) == 1);
  SSL_set_connect_state(connection);
  return connection;
}

}  // namespace shoal::test
