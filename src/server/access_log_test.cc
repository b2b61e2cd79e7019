#include "server/access_log.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <vector>

#include "core/result.h"
#include "server/test_folder.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::eventually;
using test::get;
using test::json_of;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestFolder;
using test::TestService;

TEST(RequestId, IsTheClientsWhereItIsPlainAndRandomOtherwise) {
  TestService service;
  const auto id_of = [&](const std::string& header) {
    return get(service.port(), "/ping", header).headers.at("x-request-id");
  };
  EXPECT_EQ(id_of("x-request-id: Trace_1:a.b-c\r\n"), "Trace_1:a.b-c");
  EXPECT_EQ(id_of("x-request-id: " + std::string(128, 'a') + "\r\n"), std::string(128, 'a'));
  for (const std::string& bad : {std::string(129, 'a'), std::string("a b"), std::string("a%0d"), std::string("\"x\""),
                                 std::string("\xc3\xa9")}) {
    const std::string made = id_of("x-request-id: " + bad + "\r\n");
    EXPECT_EQ(made.size(), 32U) << made;
    EXPECT_EQ(made.find_first_not_of("0123456789abcdef"), std::string::npos) << made;
  }
  EXPECT_NE(id_of(""), id_of(""));
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(AccessLog, HasALineAnAnswerWithoutTextsOrKeys) {
  const TestFolder dir;
  ServerOptions options;
  options.access_log = dir.path() / "access.log";
  options.tenant_api_keys = {{.tenant = "a", .key = "the-secret-key"}};
  TestService service({}, options);
  const std::string key = "authorization: Bearer the-secret-key\r\n";
  const std::string prompt = R"({"inputs":"the-prompt","parameters":{"max_new_tokens":3,"adapter_id":"alpha"}})";
  EXPECT_EQ(post(service.port(), "/generate?the-query", prompt, key + "x-request-id: first\r\n").status, 200);
  EXPECT_EQ(post(service.port(), "/generate", "{", key + "x-request-id: second\r\n").status, 400);
  EXPECT_EQ(post(service.port(), "/generate", prompt, "x-request-id: third\r\n").status, 401);
  EXPECT_EQ(post(service.port(), "/v1/completions", R"({"model":"","prompt":"the-prompt","max_tokens":2,"n":3})",
                 key + "x-request-id: fourth\r\n")
                .status,
            200);
  service.engine.hold();
  {
    RawClient leaves(service.port());
    service.engine.allow(1);
    leaves.post("/generate_stream", R"({"inputs":"the-prompt","parameters":{"max_new_tokens":900}})",
                key + "x-request-id: fifth\r\n");
    ASSERT_EQ(leaves.read_head().status, 200);
    ASSERT_TRUE(leaves.read_event());
    leaves.reset();
  }
  ASSERT_TRUE(eventually([&] { return service.server.num_connections() == 0; }));
  service.engine.resume();
  ASSERT_TRUE(eventually([&] { return lines_of(options.access_log).size() >= 5; }));
  const std::vector<std::string> lines = lines_of(options.access_log);
  ASSERT_EQ(lines.size(), 5U);
  for (const std::string& line : lines) {
    for (const char* secret : {"the-secret-key", "the-prompt", "the-query"}) {
      EXPECT_EQ(line.find(secret), std::string::npos) << line;
    }
  }
  // A line is written once its answer is sent, so those of two connections may be in any order.
  std::map<std::string, InputJson> by_id;
  for (const std::string& line : lines) {
    const InputJson json = json_of(line);
    by_id[json["request_id"].get<std::string>()] = json;
  }
  ASSERT_EQ(by_id.size(), 5U);
  const InputJson whole = by_id["first"];
  EXPECT_EQ(whole["method"], "POST");
  EXPECT_EQ(whole["path"], "/generate");
  EXPECT_EQ(whole["status"], 200);
  EXPECT_EQ(whole["tenant"], "key/a");
  EXPECT_EQ(whole["adapter"], "alpha");
  EXPECT_EQ(whole["generated_tokens"], 3);
  EXPECT_EQ(whole["prompt_tokens"], std::ssize(service.tokenizer().encode("the-prompt", SpecialTokens::kAdd).value()));
  EXPECT_EQ(whole["complete"], true);
  EXPECT_GT(whole["bytes"].get<int>(), 0);
  EXPECT_EQ(by_id["second"]["error"], "malformed_request");
  EXPECT_EQ(by_id["third"]["error"], "invalid_api_key");
  EXPECT_FALSE(by_id["third"].contains("tenant"));
  EXPECT_EQ(by_id["fourth"]["generated_tokens"], 6) << "of all answers";
  const InputJson left = by_id["fifth"];
  EXPECT_EQ(left["complete"], false);
  EXPECT_EQ(left["status"], 200);
}

TEST(AccessLog, ALineIsOneObjectWhateverAClientSpells) {
  const std::string line = AccessLog::line_of({.method = "GET",
                                               .path = "/a\"b\n{\xff" + std::string(10'000, 'x'),
                                               .peer = "127.0.0.1:1",
                                               .status = 404,
                                               .notes = {{"request_id", "a\"\n"}},
                                               .counts = {{"generated_tokens", 4}}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_LT(line.size(), 2000U);
  EXPECT_EQ(json_of(line)["request_id"], "a\"\n");
  EXPECT_EQ(json_of(line)["generated_tokens"], 4);
}

TEST(AccessLog, AFileThatCannotBeWrittenIsNamed) {
  try {
    const AccessLog log("/proc/no/such");
    FAIL() << "it was opened";
  } catch (const StartError& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/no/such"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shoal
