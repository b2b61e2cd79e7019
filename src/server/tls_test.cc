#include "server/tls.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/result.h"
#include "core/test_patience.h"
#include "server/http_server.h"
#include "server/raw_client.h"
#include "server/test_certificates.h"
#include "server/test_folder.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::CertificateAuthority;
using test::eventually;
using test::IssuedCertificate;
using test::RawClient;
using test::TestFolder;
using test::TlsClient;

constexpr auto kPoll = milliseconds(2);

// What must be in place before the files can be used.
class Files {
 public:
  explicit Files(const CertificateAuthority& authority) { put(authority.issue()); }
  void put(const IssuedCertificate& issued) const {
    folder_.write("cert.pem", issued.certificate);
    folder_.write("key.pem", issued.key);
  }
  const TestFolder& folder() const { return folder_; }
  TlsFiles paths() const { return {.certificate = path("cert.pem"), .key = path("key.pem")}; }
  std::filesystem::path path(const char* name) const { return folder_.path() / name; }

 private:
  TestFolder folder_;
};

std::string fault_of(const TlsFiles& files) {
  try {
    const TlsContext context(files);
    return "none";
  } catch (const StartError& error) {
    return error.what();
  }
}

TEST(TlsFiles, FaultsNameTheFileAndWhatIsWrongWithIt) {
  const CertificateAuthority authority;
  const IssuedCertificate good = authority.issue();
  const IssuedCertificate other = authority.issue();
  const Files files(authority);
  const std::string cert = "TLS certificate file " + files.path("cert.pem").string() + ": ";
  const std::string key = "TLS key file " + files.path("key.pem").string() + ": ";
  const auto fault = [&](const std::string& certificate_text, const std::string& key_text) {
    files.put({.certificate = certificate_text, .key = key_text});
    return fault_of(files.paths());
  };
  EXPECT_EQ(fault(good.certificate, good.key), "none");
  EXPECT_EQ(fault(good.certificate + authority.pem(), good.key), "none") << "with what stands above it";
  EXPECT_EQ(fault("nothing", good.key), cert + "holds no certificate in PEM");
  EXPECT_EQ(fault(good.key, good.key), cert + "holds no certificate in PEM");
  EXPECT_EQ(fault("", good.key), cert + "holds no certificate in PEM");
  EXPECT_EQ(fault(good.certificate, "nothing"), key + "holds no private key in PEM");
  EXPECT_EQ(fault(good.certificate, good.certificate), key + "holds no private key in PEM");
  EXPECT_EQ(fault(good.certificate, other.key),
            key + "the key does not fit the certificate in " + files.path("cert.pem").string());
  EXPECT_EQ(fault(authority.pem() + good.certificate, good.key),
            key + "the key does not fit the certificate in " + files.path("cert.pem").string());
  EXPECT_EQ(fault(good.certificate, test::encrypted(good.key)),
            key + "is encrypted, expected a key without passphrase");
  EXPECT_TRUE(fault(good.certificate.substr(0, 200) + "\n-----END CERTIFICATE-----\n", good.key)
                  .starts_with(cert + "certificate 1 cannot be read: "));
  EXPECT_EQ(fault(std::string((1 << 20) + 1, ' '), good.key), cert + "is larger than 1048576 bytes");
}

TEST(TlsFiles, CertificatesAreOfToday) {
  const CertificateAuthority authority;
  const Files files(authority);
  const IssuedCertificate old = authority.issue({.name = "old", .begins_in_days = -9, .ends_in_days = -1});
  files.put(old);
  EXPECT_NE(fault_of(files.paths()).find("cert.pem: certificate 1 (CN=old) expired on "), std::string::npos);
  files.put(authority.issue({.name = "new", .begins_in_days = 1, .ends_in_days = 9}));
  EXPECT_NE(fault_of(files.paths()).find("cert.pem: certificate 1 (CN=new) begins on "), std::string::npos);
  IssuedCertificate chained = authority.issue();
  chained.certificate += old.certificate;
  files.put(chained);
  EXPECT_NE(fault_of(files.paths()).find("cert.pem: certificate 2 (CN=old) expired on "), std::string::npos);
}

TEST(TlsFiles, OnlyFilesThatAreThereAreRead) {
  const CertificateAuthority authority;
  const Files files(authority);
  TlsFiles paths = files.paths();
  paths.key = files.path("no.pem");
  EXPECT_EQ(fault_of(paths), "TLS key file " + paths.key.string() + ": No such file or directory");
  paths.key = files.folder().path();
  EXPECT_EQ(fault_of(paths), "TLS key file " + paths.key.string() + ": is no regular file");
  paths = files.paths();
  paths.certificate = files.path("no.pem");
  EXPECT_EQ(fault_of(paths), "TLS certificate file " + paths.certificate.string() + ": No such file or directory");
  paths = files.paths();
  paths.client_ca = files.path("key.pem");
  EXPECT_EQ(fault_of(paths), "TLS client CA file " + paths.client_ca.string() + ": holds no certificate in PEM");
}

void on_fault(int status, const HttpRequest& request, const ResponseWriter& writer) {
  writer.send(status, {}, "fault of " + request.path);
}

void echo(const HttpRequest& request, const ResponseWriter& writer) { writer.send(200, {}, request.path); }

HttpServerOptions options_of(const TlsFiles& files) {
  HttpServerOptions options;
  options.hostname = "127.0.0.1";
  options.port = 0;
  options.tls = std::make_shared<const TlsContext>(files, kPoll);
  return options;
}

// How OpenSSL sees the end of a connection on which nothing more comes.
int end_of(const RawClient& client) {
  char byte = 0;
  return SSL_get_error(client.tls(), SSL_read(client.tls(), &byte, 1));
}

TEST(Tls, SpeaksVersionsFrom12AndHttp11) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServer server(options_of(files.paths()), echo, on_fault);
  const auto connect = [&](int max_version, const std::string& protocol) {
    const TlsClient client({.ca = authority.pem(), .max_version = max_version, .protocol = protocol});
    return RawClient(server.port(), &client);
  };
  EXPECT_EQ(SSL_version(connect(0, "").tls()), TLS1_3_VERSION);
  EXPECT_EQ(SSL_version(connect(TLS1_2_VERSION, "").tls()), TLS1_2_VERSION);
  EXPECT_TRUE(connect(TLS1_1_VERSION, "").has_failed());
  EXPECT_TRUE(connect(0, "h2").has_failed());
  for (const char* protocol : {"", "http/1.1"}) {
    RawClient client = connect(0, protocol);
    const unsigned char* chosen = nullptr;
    unsigned chosen_bytes = 0;
    SSL_get0_alpn_selected(client.tls(), &chosen, &chosen_bytes);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(chosen), chosen_bytes), protocol);
    EXPECT_EQ(SSL_get_current_compression(client.tls()), nullptr);
    client.get("/a");
    EXPECT_EQ(client.read_response().body, "/a");
  }
}

TEST(Tls, RefusesToNegotiateAgain) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServer server(options_of(files.paths()), echo, on_fault);
  const TlsClient tls({.ca = authority.pem(), .max_version = TLS1_2_VERSION});
  RawClient client(server.port(), &tls);
  ASSERT_EQ(SSL_renegotiate(client.tls()), 1);
  EXPECT_NE(SSL_do_handshake(client.tls()), 1);
  EXPECT_EQ(test::get(server.port(), "/a", "", &tls).body, "/a");
}

TEST(Tls, AnsweredConnectionsEndWithAGoodbye) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServerOptions options = options_of(files.paths());
  HttpServer server(options, echo, on_fault);
  const TlsClient tls({.ca = authority.pem()});
  for (const char* request :
       {"GET /a HTTP/1.0\r\n\r\n", "GET /a HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", "nonsense\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999\r\n\r\n"}) {
    RawClient client(server.port(), &tls);
    client.send(request);
    EXPECT_NE(client.read_response().status, 0);
    EXPECT_EQ(end_of(client), SSL_ERROR_ZERO_RETURN) << request;
  }
  RawClient idle(server.port(), &tls);
  idle.get("/a");
  EXPECT_EQ(idle.read_response().status, 200);
  server.stop(milliseconds(60'000));
  EXPECT_EQ(end_of(idle), SSL_ERROR_ZERO_RETURN);
}

TEST(Tls, AnAnswerThatIsCutOffEndsWithoutAGoodbye) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServer server(
      options_of(files.paths()), [](const HttpRequest&, const ResponseWriter& writer) { writer.begin_stream({}); },
      on_fault);
  const TlsClient tls({.ca = authority.pem()});
  RawClient client(server.port(), &tls);
  client.send("GET /a HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 200);
  server.stop(milliseconds(0));
  EXPECT_NE(end_of(client), SSL_ERROR_ZERO_RETURN) << "or a cut text would pass for a whole one";
}

TEST(Tls, PlainHttpIsClosedAndOthersAreServed) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServer server(options_of(files.paths()), echo, on_fault);
  const TlsClient tls({.ca = authority.pem()});
  for (const std::string& bytes : {std::string("GET /a HTTP/1.1\r\nhost: h\r\n\r\n"), std::string(100'000, 'x'),
                                   std::string("\x16\x03\x01\xff\xff\x01\x02\x03", 8) + std::string(70'000, '\0')}) {
    RawClient plain(server.port());
    plain.send(bytes);
    plain.half_close();
    EXPECT_EQ(plain.read_response().status, 0);
    EXPECT_EQ(test::get(server.port(), "/a", "", &tls).body, "/a");
  }
  EXPECT_TRUE(eventually([&] { return server.num_connections() == 0; }));
}

TEST(Tls, AHandshakeThatDoesNotEndIsEnded) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServerOptions options = options_of(files.paths());
  options.header_timeout = milliseconds(100);
  HttpServer server(options, echo, on_fault);
  RawClient silent(server.port());
  RawClient begun(server.port());
  begun.send(std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(silent.closed_by_server());
  EXPECT_TRUE(begun.closed_by_server());
  RawClient dripping(server.port());
  while (dripping.send(std::string_view("\x16\x03\x01\x3f\xff\x01", 6))) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(eventually([&] { return server.num_connections() == 0; }));
}

TEST(Tls, HandshakesCountAsConnectionsAndEndWithTheServer) {
  const CertificateAuthority authority;
  const Files files(authority);
  HttpServerOptions options = options_of(files.paths());
  options.max_connections = 2;
  options.header_timeout = std::chrono::hours(1);
  HttpServer server(options, echo, on_fault);
  const TlsClient tls({.ca = authority.pem()});
  std::optional<RawClient> first(server.port());
  RawClient second(server.port());
  ASSERT_TRUE(eventually([&] { return server.num_connections() == 2; }));
  EXPECT_EQ(test::get(server.port(), "/a", "", &tls).status, 503);
  first.reset();
  ASSERT_TRUE(eventually([&] { return server.num_connections() == 1; }));
  EXPECT_EQ(test::get(server.port(), "/a", "", &tls).status, 200);
  server.stop(std::chrono::hours(1));  // at once, though the handshake has as long
  EXPECT_TRUE(second.closed_by_server());
}

TEST(Tls, AClientShowsACertificateOfTheAuthorityWhereOneIsAskedFor) {
  const CertificateAuthority authority;
  const CertificateAuthority of_clients;
  const Files files(authority);
  files.folder().write("clients.pem", of_clients.pem() + authority.pem());
  TlsFiles paths = files.paths();
  paths.client_ca = files.path("clients.pem");
  HttpServer server(options_of(paths), echo, on_fault);
  const auto status = [&](const IssuedCertificate& own, int max_version) {
    const TlsClient tls({.ca = authority.pem(), .own = own, .max_version = max_version});
    return test::get(server.port(), "/a", "", &tls).status;
  };
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    EXPECT_EQ(status(of_clients.issue({.name = "a client"}), version), 200);
    EXPECT_EQ(status(authority.issue(), version), 200) << "the second of the file";
    EXPECT_EQ(status({}, version), 0);
    EXPECT_EQ(status(CertificateAuthority().issue(), version), 0);
    EXPECT_EQ(status(of_clients.issue({.begins_in_days = -9, .ends_in_days = -1}), version), 0);
  }
}

// Of the certificate that a new connection is shown.
std::string name_seen(const HttpServer& server, const TlsClient& tls) {
  RawClient client(server.port(), &tls);
  client.get("/a");
  EXPECT_EQ(client.read_response().body, "/a");
  const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(client.tls()), X509_free);
  char name[64] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, name, sizeof name);
  return name;
}

TEST(Tls, FilesThatChangeCountForNewConnections) {
  const CertificateAuthority authority;
  const Files files(authority);
  files.put(authority.issue({.name = "first"}));
  const HttpServerOptions options = options_of(files.paths());
  HttpServer server(options, echo, on_fault);
  const TlsClient tls({.ca = authority.pem()});
  RawClient old(server.port(), &tls);
  EXPECT_EQ(name_seen(server, tls), "first");
  const std::int64_t failed = options.tls->num_failed_reads();
  files.folder().write("cert.pem", authority.issue({.name = "without its key"}).certificate);
  ASSERT_TRUE(eventually([&] { return options.tls->num_failed_reads() > failed; }));
  EXPECT_EQ(name_seen(server, tls), "first");
  files.put(authority.issue({.name = "second"}));
  EXPECT_TRUE(eventually([&] { return name_seen(server, tls) == "second"; }));
  const std::int64_t failed_again = options.tls->num_failed_reads();
  std::filesystem::remove(files.path("key.pem"));
  ASSERT_TRUE(eventually([&] { return options.tls->num_failed_reads() > failed_again; }));
  EXPECT_EQ(name_seen(server, tls), "second");
  old.get("/old");
  EXPECT_EQ(old.read_response().body, "/old") << "what was open goes on";
}

}  // namespace
}  // namespace shoal
