// The table of failures: each row in both protocols, its page in docs/, and how requests come by those of the
// transport.
#include "server/errors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::get;
using test::json_of;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

TEST(ErrorTable, EachRowReadsAsItsProtocolDoes) {
  std::set<std::string> codes;
  for (const FailureRow& row : all_failures()) {
    const ApiError error{.failure = row.failure, .message = "why", .param = "field"};
    EXPECT_EQ(error_status(error, ApiStyle::kNative), row.native_status);
    EXPECT_EQ(error_status(error, ApiStyle::kOpenAi), row.openai_status);
    const InputJson native = json_of(error_body(error, ApiStyle::kNative));
    EXPECT_EQ(native.size(), 3U);
    EXPECT_EQ(native["error"], std::string(row.native_prefix) + "why");
    EXPECT_EQ(native["error_type"], row.error_type);
    EXPECT_EQ(native["error_code"], row.error_code);
    const InputJson openai = json_of(error_body(error, ApiStyle::kOpenAi));
    EXPECT_EQ(openai.size(), 3U);
    EXPECT_EQ(openai["error"]["message"], "why");
    EXPECT_EQ(openai["error"]["type"], row.openai_type);
    EXPECT_EQ(openai["error"]["param"], "field");
    EXPECT_EQ(openai["error"]["code"].is_null(), *row.openai_code == '\0');
    EXPECT_EQ(openai["error_type"], row.error_type);
    EXPECT_EQ(openai["error_code"], row.error_code);
    EXPECT_NE(status_text(row.native_status), "Unknown") << row.native_status;
    EXPECT_NE(status_text(row.openai_status), "Unknown") << row.openai_status;
    EXPECT_NE(std::string(row.error_code), "");
    EXPECT_TRUE(codes.insert(row.error_code).second) << row.error_code << " stands for two failures";
  }
}

TEST(ErrorTable, IsThatOfTheDocs) {
  std::string expected;
  for (const FailureRow& row : all_failures()) {
    const auto or_null = [](const char* code) {
      return *code == '\0' ? std::string("null") : fmt::format("`{}`", code);
    };
    expected += fmt::format("| {} | `{}` | `{}` | {} | `{}` | {} |\n", row.native_status, row.error_type,
                            row.error_code, row.openai_status, row.openai_type, or_null(row.openai_code));
  }
  std::ifstream file("docs/errors.md");  // tests run in the root of the sources
  ASSERT_TRUE(file) << "no docs/errors.md here";
  std::ostringstream text;
  text << file.rdbuf();
  // The last cell of a row says in words when it happens.
  std::string found;
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| 4") && !line.starts_with("| 5")) continue;
    const std::size_t end = line.rfind(" | ", line.size() - 3);
    found += line.substr(0, end) + " |\n";
  }
  EXPECT_EQ(found, expected);
}

struct Fault {
  std::string request;
  int status;
  const char* code;
};

TEST(ErrorTable, TransportFaultsAnswerInTheProtocolOfTheirPath) {
  ServerOptions options;
  options.http.max_body_bytes = 4096;
  options.http.max_header_bytes = 2048;
  options.http.header_timeout = std::chrono::milliseconds(300);
  options.http.body_timeout = std::chrono::milliseconds(300);
  TestService service({}, options);
  const std::string json = "content-type: application/json\r\n";
  for (const std::string path : {"/generate", "/v1/completions"}) {
    const std::string begin = "POST " + path + " HTTP/1.1\r\nhost: h\r\n";
    const Fault faults[] = {
        {begin + json + "content-length: 1\r\n\r\n{", 400, "malformed_request"},
        {begin + "content-length: 2\r\n\r\n{}", 415, "unsupported_media_type"},
        {begin + json + "content-length: 5000\r\n\r\n", 413, "payload_too_large"},
        {begin + "x: " + std::string(4096, 'a') + "\r\n\r\n", 431, "headers_too_large"},
        {begin + json + "content-length: 10\r\n\r\nabc", 408, "request_timeout"},
        {"GET " + path + " HTTP/1.1\r\nhost: h\r\n\r\n", 405, "method_not_allowed"},
        {"GET " + path + "/nowhere HTTP/1.1\r\nhost: h\r\n\r\n", 404, "unknown_url"},
    };
    for (const Fault& fault : faults) {
      RawClient client(service.port());
      client.send(fault.request);
      const RawResponse response = client.read_response();
      EXPECT_EQ(response.status, fault.status) << fault.code;
      EXPECT_EQ(response.headers.at("content-type"), "application/json") << fault.code;
      EXPECT_TRUE(response.headers.contains("x-request-id")) << fault.code;
      const InputJson body = json_of(response.body);
      if (path == "/generate") {
        EXPECT_EQ(body["error_code"], fault.code);
      } else {
        EXPECT_TRUE(body["error"].is_object()) << fault.code;
        const bool named = body["error"]["code"].is_null() || body["error"]["code"] == fault.code;
        EXPECT_TRUE(named) << body;
      }
    }
  }
}

TEST(ErrorTable, OneConnectionTooManyHearsIt) {
  ServerOptions options;
  options.http.max_connections = 2;
  TestService service({}, options);
  RawClient first(service.port());
  RawClient second(service.port());
  for (RawClient* client : {&first, &second}) {
    client->get("/ping");
    ASSERT_EQ(client->read_response().status, 200);
  }
  for (const char* path : {"/health", "/v1/models"}) {
    RawClient third(service.port());
    third.get(path);
    const RawResponse response = third.read_response();
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_NE(response.body.find("too_many_connections"), std::string::npos) << response.body;
    EXPECT_TRUE(third.closed_by_server());
  }
  first.get("/ping");
  EXPECT_EQ(first.read_response().status, 200) << "those that were there stay";
  second.close();
  EXPECT_TRUE(test::eventually([&] { return get(service.port(), "/ping").status == 200; })) << "there is room again";
}

}  // namespace
}  // namespace shoal
