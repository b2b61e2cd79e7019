// CertificateAuthority and TlsClient: certificates made on the spot, and a client that believes them. Used by the tests
// of src/server.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>

namespace shoal::test {

struct IssuedCertificate {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

struct CertificateOptions {
  std::string name = "localhost";
  int begins_in_days = -1;
  int ends_in_days = 30;
};

// Of 127.0.0.1, by keys on P-256.
class CertificateAuthority {
 public:
  CertificateAuthority();
  const std::string& pem() const { return pem_; }
  IssuedCertificate issue(const CertificateOptions& options = {}) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;  // shared, as OpenSSL's objects are counted
  std::shared_ptr<X509> certificate_;
  std::string pem_;
};

// The same key in PEM under a passphrase.
std::string encrypted(const std::string& key_pem);

class TlsClient {
 public:
  struct Options {
    std::string ca;              // PEM of whom it believes
    IssuedCertificate own = {};  // empty: it has none to show
    int max_version = 0;         // as TLS1_2_VERSION; 0: any
    std::string protocol = {};   // offered by ALPN; "": the extension is left out
  };
  explicit TlsClient(const Options& options);

  // A client's side over a connected socket, not yet shaken hands; the caller frees it.
  SSL* over(int socket) const;

 private:
  std::shared_ptr<SSL_CTX> context_;  // shared with copies
};

}  // namespace shoal::test
