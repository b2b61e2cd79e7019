#include "server/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/test_patience.h"
#include "server/http_format.h"
#include "server/raw_client.h"
#include "server/test_certificates.h"
#include "server/test_folder.h"
#include "server/tls.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::eventually;
using test::RawClient;
using test::RawResponse;

void on_fault(int status, const HttpRequest& request, const ResponseWriter& writer) {
  writer.send(status, {}, "fault of " + request.path);
}

// Answers with what it was sent.
void echo(const HttpRequest& request, const ResponseWriter& writer) {
  writer.send(200, {{"x-method", request.method}, {"x-query", request.query}}, request.path + "|" + request.body);
}

std::int64_t num_threads_of_process() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "Threads:") break;
  }
  std::int64_t count = 0;
  status >> count;
  return count;
}

enum class Transport : std::uint8_t { kPlain, kTls };

// What holds of HTTP holds over TLS.
class HttpServerTest : public testing::TestWithParam<Transport> {
 protected:
  static void SetUpTestSuite() {
    const test::CertificateAuthority authority;
    const test::IssuedCertificate own = authority.issue();
    folder_ = new test::TestFolder();
    folder_->write("cert.pem", own.certificate);
    folder_->write("key.pem", own.key);
    client_ = new test::TlsClient({.ca = authority.pem()});
  }
  static void TearDownTestSuite() {
    delete std::exchange(client_, nullptr);
    delete std::exchange(folder_, nullptr);
  }

  static HttpServerOptions loopback() {
    HttpServerOptions options;
    options.hostname = "127.0.0.1";
    options.port = 0;
    if (GetParam() == Transport::kTls) {
      options.tls = std::make_shared<const TlsContext>(
          TlsFiles{.certificate = folder_->path() / "cert.pem", .key = folder_->path() / "key.pem"});
    }
    return options;
  }
  static RawClient connect(const HttpServer& server) { return RawClient(server.port(), tls()); }
  static RawResponse get(const HttpServer& server, const std::string& path, const std::string& extra_headers = "") {
    return test::get(server.port(), path, extra_headers, tls());
  }
  static RawResponse post(const HttpServer& server, const std::string& path, const std::string& body) {
    return test::post(server.port(), path, body, "", tls());
  }

 private:
  static const test::TlsClient* tls() { return GetParam() == Transport::kTls ? client_ : nullptr; }

  static test::TestFolder* folder_;
  static test::TlsClient* client_;
};

test::TestFolder* HttpServerTest::folder_ = nullptr;
test::TlsClient* HttpServerTest::client_ = nullptr;

INSTANTIATE_TEST_SUITE_P(Over, HttpServerTest, testing::Values(Transport::kPlain, Transport::kTls),
                         [](const auto& each) { return each.param == Transport::kTls ? "Tls" : "Plain"; });

TEST_P(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  for (int i = 0; i < 3; ++i) {
    client.send("POST /a/b?x=" + std::to_string(i) + " HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nhi");
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "/a/b|hi");
    EXPECT_EQ(response.headers.at("x-query"), "x=" + std::to_string(i));
    EXPECT_FALSE(response.headers.contains("connection"));
  }
}

TEST_P(HttpServerTest, LargeRequestsLeaveAThreadToTheOthers) {
  std::atomic<int> at_work{0};
  std::atomic<int> most_at_work{0};
  std::atomic<bool> go_on{false};
  HttpServer server(
      loopback(),
      [&](const HttpRequest& request, const ResponseWriter& writer) {
        if (request.path == "/large") {
          most_at_work = std::max(most_at_work.load(), ++at_work);
          eventually([&] { return go_on.load(); });
          --at_work;
        }
        writer.send(200, {}, "done");
      },
      on_fault);
  const std::string body(100'000, 'x');
  std::vector<RawClient> large;
  for (int i = 0; i < 5; ++i) {
    large.push_back(connect(server));
    large.back().post("/large", body);
  }
  ASSERT_TRUE(eventually([&] { return at_work == 1; }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(server, "/small").body, "done");
  EXPECT_EQ(at_work, 1) << "the first is still there";
  large[3].reset();  // while it waits
  go_on = true;
  for (const std::size_t i : {0U, 1U, 2U, 4U}) EXPECT_EQ(large[i].read_response().body, "done");
  EXPECT_EQ(most_at_work, 1);
}

TEST_P(HttpServerTest, DropsALargeRequestWhoseClientLeftWhileItWaited) {
  std::atomic<int> handled{0};
  std::atomic<bool> go_on{false};
  HttpServer server(
      loopback(),
      [&](const HttpRequest& request, const ResponseWriter& writer) {
        if (request.path == "/large") {
          ++handled;
          eventually([&] { return go_on.load(); });
        }
        writer.send(200, {}, "done");
      },
      on_fault);
  const std::string body(100'000, 'x');
  RawClient first = connect(server);
  first.post("/large", body);
  ASSERT_TRUE(eventually([&] { return handled == 1; }));
  for (int i = 0; i < 5; ++i) connect(server).post("/large", body);  // and gone
  RawClient last = connect(server);
  last.get("/small");
  EXPECT_EQ(last.read_response().body, "done") << "connections are taken in their order: the five were";
  ASSERT_TRUE(eventually([&] { return server.num_connections() == 2; })) << "that they have left is known";
  last.post("/large", body);
  go_on = true;
  EXPECT_EQ(first.read_response().body, "done");
  EXPECT_EQ(last.read_response().body, "done");
  EXPECT_EQ(handled, 2);
}

TEST_P(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\nhost: h\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.read_response().body, "/" + std::to_string(i) + "|");
}

TEST_P(HttpServerTest, ReadsARequestThatArrivesByteByByte) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  const std::string request = "\r\nPOST /slow HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc";
  for (const char byte : request) client.send(std::string_view(&byte, 1));
  EXPECT_EQ(client.read_response().body, "/slow|abc");
}

TEST_P(HttpServerTest, ReadsChunkedBodiesAndAbsoluteTargets) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  client.send(
      "POST http://h:1/p?q HTTP/1.1\r\nhost: h\r\ntransfer-encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.body, "/p|abcde");
  EXPECT_EQ(response.headers.at("x-query"), "q");
}

TEST_P(HttpServerTest, SendsContinueOnlyWhenItWantsTheBody) {
  HttpServerOptions options = loopback();
  options.max_body_bytes = 100;
  HttpServer server(options, echo, on_fault);
  RawClient client = connect(server);
  client.send("POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send("ok");
  EXPECT_EQ(client.read_response().body, "/|ok");
  client.send("POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 101\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 413);
}

TEST_P(HttpServerTest, ServesHttp10AndCloses) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  client.send("GET /old HTTP/1.0\r\n\r\n");
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.body, "/old|");
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST_P(HttpServerTest, AnswersHeadWithoutABody) {
  HttpServer server(loopback(), echo, on_fault);
  RawClient client = connect(server);
  client.send("HEAD /h HTTP/1.1\r\nhost: h\r\n\r\n");
  EXPECT_EQ(client.read_response(/*to_head=*/true).headers.at("content-length"), "3");
  client.get("/next");
  EXPECT_EQ(client.read_response().body, "/next|");
}

TEST_P(HttpServerTest, RefusesMalformedRequestsAndLivesOn) {
  HttpServer server(loopback(), echo, on_fault);
  const std::pair<int, std::string> cases[] = {
      {400, "nonsense\r\n\r\n"},
      {400, "GET\r\n\r\n"},
      {400, std::string("GET / HTTP/1.1\r\nho\0st: h\r\n\r\n", 29)},
      {400, "GET / HTTP/1.1\r\nno colon here\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"},
      {400, "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"},
      {413, "POST /big HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999\r\n\r\n"},
      {505, "GET / HTTP/3.0\r\nhost: h\r\n\r\n"},
      {400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"},
  };
  for (const auto& [status, request] : cases) {
    RawClient client = connect(server);
    client.send(request);
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, status) << request;
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_EQ(get(server, "/alive").body, "/alive|");
  }
}

TEST_P(HttpServerTest, BoundsHeadersAndBodies) {
  HttpServerOptions options = loopback();
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  HttpServer server(options, echo, on_fault);
  EXPECT_EQ(post(server, "/", std::string(1000, 'a')).status, 200);
  EXPECT_EQ(post(server, "/", std::string(1001, 'a')).status, 413);
  // Much more than the socket buffers hold: a client that is still sending must not meet a reset, or it never reads.
  RawClient sending = connect(server);
  sending.send("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 20000000\r\n\r\n");
  EXPECT_TRUE(sending.send(std::string(20'000'000, 'a')));
  EXPECT_EQ(sending.read_response().status, 413);
  EXPECT_EQ(get(server, "/", "x-long: " + std::string(3000, 'a') + "\r\n").status, 431);
  EXPECT_EQ(get(server, "/" + std::string(3000, 'a')).status, 431);
  RawClient client = connect(server);
  client.send("POST /chunks HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) client.send("64\r\n" + std::string(100, 'a') + "\r\n");
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.body, "fault of /chunks");
}

TEST_P(HttpServerTest, GivesUpOnRequestsThatNeverEnd) {
  HttpServerOptions options = loopback();
  options.header_timeout = milliseconds(60);
  options.body_timeout = milliseconds(60);
  options.idle_timeout = milliseconds(200);
  HttpServer server(options, echo, on_fault);
  RawClient half_header = connect(server);
  half_header.send("GET / HTTP/1.1\r\nhost:");
  EXPECT_EQ(half_header.read_response().status, 408);
  RawClient half_body = connect(server);
  half_body.send("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc");
  EXPECT_EQ(half_body.read_response().status, 408);
  RawClient idle = connect(server);
  EXPECT_TRUE(idle.closed_by_server());
}

TEST_P(HttpServerTest, AHandlerThatThrowsAnswers500) {
  HttpServer server(
      loopback(),
      [](const HttpRequest& request, const ResponseWriter& writer) {
        if (request.path == "/throw") throw std::runtime_error("as the test wants it");
        writer.send(200, {}, "ok");
      },
      on_fault);
  RawClient client = connect(server);
  client.get("/throw");
  EXPECT_EQ(client.read_response().status, 500);
  client.get("/");
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_P(HttpServerTest, StreamsFromAnotherThread) {
  HttpServer server(
      loopback(),
      [](const HttpRequest&, const ResponseWriter& writer) {
        writer.begin_stream({{"content-type", "text/event-stream"}});
        std::thread([writer] {
          for (int i = 0; i < 3; ++i) {
            writer.post([writer, i] { writer.write("data: " + std::to_string(i) + "\n\n"); });
          }
          writer.post([writer] {
            writer.end();
            writer.end();
            writer.write("late");
          });
        }).detach();
      },
      on_fault);
  RawClient client = connect(server);
  for (int round = 0; round < 2; ++round) {
    client.get("/");
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(response.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  }
  client.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
}

TEST_P(HttpServerTest, FillsSilenceWithComments) {
  HttpServerOptions options = loopback();
  options.keep_alive_comment = milliseconds(20);
  HttpServer server(
      options, [](const HttpRequest&, const ResponseWriter& writer) { writer.begin_stream({}); }, on_fault);
  RawClient client = connect(server);
  client.get("/");
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_EQ(client.read_event(), ":");
  EXPECT_EQ(client.read_event(), ":");
}

TEST_P(HttpServerTest, TellsTheHandlerOfEveryFormOfDisconnect) {
  std::atomic<int> num_handled{0};
  std::atomic<int> num_closed{0};
  HttpServer server(
      loopback(),
      [&](const HttpRequest& request, const ResponseWriter& writer) {
        if (request.path == "/stream") writer.begin_stream({});
        writer.on_close([&num_closed] { ++num_closed; });
        ++num_handled;
      },
      on_fault);
  int expected = 0;
  for (const char* path : {"/whole", "/stream"}) {
    for (const auto leave : {+[](RawClient& client) { client.close(); }, +[](RawClient& client) { client.reset(); },
                             +[](RawClient& client) { client.half_close(); }}) {
      RawClient client = connect(server);
      client.get(path);
      if (std::string_view(path) == "/stream") {
        EXPECT_EQ(client.read_head().status, 200);
      }
      ++expected;
      ASSERT_TRUE(eventually([&] { return num_handled == expected; })) << "a reset takes along what was not read yet";
      leave(client);
      EXPECT_TRUE(eventually([&] { return num_closed == expected; })) << path;
    }
  }
  EXPECT_TRUE(eventually([&] { return server.num_connections() == 0; }));
}

TEST_P(HttpServerTest, CutsOffAReaderThatIsTooSlow) {
  HttpServerOptions options = loopback();
  options.max_stream_buffer_bytes = 64 * 1024;
  std::atomic<bool> closed{false};
  std::atomic<std::int64_t> written{0};
  std::jthread producer;
  HttpServer server(
      options,
      [&](const HttpRequest&, const ResponseWriter& writer) {
        writer.begin_stream({});
        writer.on_close([&closed] { closed = true; });
        producer = std::jthread([&closed, &written, writer] {
          const std::string event(1000, 'x');
          while (!closed && written < 1'000'000'000) {
            const auto done = std::make_shared<std::atomic<bool>>(false);
            writer.post([writer, event, done] {
              writer.write(event);
              *done = true;
            });
            while (!*done && !closed) std::this_thread::yield();
            written += 1000;
          }
        });
      },
      on_fault);
  const RawClient client = connect(server);
  client.get("/");
  EXPECT_TRUE(eventually([&] { return closed.load(); }));
  EXPECT_LT(written, 64'000'000);
}

TEST_P(HttpServerTest, ABurstDoesNotCutOffAReaderThatReads) {
  HttpServerOptions options = loopback();
  options.max_stream_buffer_bytes = 1000;
  HttpServer server(
      options,
      [](const HttpRequest&, const ResponseWriter& writer) {
        writer.begin_stream({});
        for (int i = 0; i < 100; ++i) writer.write(std::string(100, 'x'));
        writer.write(std::string(10'000, 'y'));
        writer.end();
      },
      on_fault);
  RawClient client = connect(server);
  client.get("/");
  EXPECT_EQ(client.read_response().body, std::string(10'000, 'x') + std::string(10'000, 'y'));
}

TEST_P(HttpServerTest, HoldsAThousandIdleConnectionsWithoutThreadsOfTheirOwn) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_GE(files.rlim_cur, 2200U);
  HttpServer server(loopback(), echo, on_fault);
  const std::int64_t threads_before = num_threads_of_process();
  std::vector<RawClient> clients;
  for (int i = 0; i < 1000; ++i) clients.push_back(connect(server));
  EXPECT_TRUE(eventually([&] { return server.num_connections() == 1000; }));
  EXPECT_EQ(num_threads_of_process(), threads_before);
  for (RawClient& client : clients) client.get("/");
  for (RawClient& client : clients) ASSERT_EQ(client.read_response().status, 200);
  clients.clear();
  EXPECT_TRUE(eventually([&] { return server.num_connections() == 0; }));
}

TEST_P(HttpServerTest, StopLetsAnswersEndWithinTheGrace) {
  std::optional<ResponseWriter> open;
  std::atomic<bool> begun{false};
  HttpServer server(
      loopback(),
      [&](const HttpRequest&, const ResponseWriter& writer) {
        writer.begin_stream({});
        open = writer;
        begun = true;
      },
      on_fault);
  RawClient idle = connect(server);
  RawClient client = connect(server);
  client.get("/");
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  std::jthread stopping([&] { server.stop(milliseconds(5000)); });
  EXPECT_TRUE(idle.closed_by_server());
  open->post([writer = *open] {
    writer.write("data: last\n\n");
    writer.end();
  });
  EXPECT_EQ(client.read_response().body, "data: last\n\n");
  EXPECT_TRUE(client.closed_by_server());
  stopping.join();
  open->post([] { ADD_FAILURE() << "runs after the stop"; });
}

TEST_P(HttpServerTest, StopEndsAnswersThatDoNotEndThemselves) {
  std::atomic<bool> closed{false};
  std::atomic<bool> begun{false};
  HttpServer server(
      loopback(),
      [&](const HttpRequest&, const ResponseWriter& writer) {
        writer.on_close([&closed] { closed = true; });
        begun = true;
      },
      on_fault);
  RawClient client = connect(server);
  client.get("/");
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  server.stop(milliseconds(20));
  EXPECT_TRUE(closed);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_P(HttpServerTest, AnAddressThatIsTakenCannotStart) {
  HttpServer server(loopback(), echo, on_fault);
  HttpServerOptions options = loopback();
  options.port = server.port();
  try {
    HttpServer(options, echo, on_fault);
    ADD_FAILURE() << "two servers on one port";
  } catch (const StartError& error) {
    EXPECT_EQ(error.what(), fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", server.port()));
  }
  options.hostname = "no.such.host.invalid";
  EXPECT_THROW(HttpServer(options, echo, on_fault), StartError);
}

TEST(HttpFormat, AValueCannotMakeAHeaderOfItsOwn) {
  std::string head;
  append_response_head(head, {.status = 200}, {{"x-adapter-id", "a\r\nx-evil: 1\x7f\xc3\xa9"}}, 0);
  EXPECT_NE(head.find("x-adapter-id: a%0D%0Ax-evil: 1%7F%C3%A9\r\n"), std::string::npos) << head;
}

TEST(HttpFormat, DecodesPercentSigns) {
  EXPECT_EQ(percent_decode("org%2Fname%20x"), "org/name x");
  EXPECT_EQ(percent_decode("100%"), "100%");
  EXPECT_EQ(percent_decode("%zz%4"), "%zz%4");
}

}  // namespace
}  // namespace shoal
