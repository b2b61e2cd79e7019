// What a key lets its holder use: adapters by rule, on every route, in listings and in the words of errors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "server/test_folder.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::eventually;
using test::get;
using test::json_of;
using test::post;
using test::RawResponse;
using test::TestFolder;
using test::TestService;

constexpr const char* kKeys = R"({"keys":[
  {"key":"of-all","tenant":"all"},
  {"key":"of-org","tenant":"org","adapters":["org/*"]},
  {"key":"of-none","tenant":"none","adapters":[]},
  {"key":"of-old","tenant":"old","expires":"2020-01-01T00:00:00Z"}]})";

ServerOptions options_of(const TestFolder& dir) {
  dir.write("keys.json", kKeys);
  ServerOptions options;
  options.api_key_file = dir.path() / "keys.json";
  return options;
}

std::string bearer(const std::string& key) { return "authorization: Bearer " + key + "\r\n"; }

struct Route {
  const char* path;
  std::string (*body)(const std::string& adapter);
};

const Route kRoutes[] = {
    {"/generate",
     [](const std::string& id) {
       return R"({"inputs":"a","parameters":{"max_new_tokens":2,"adapter_id":")" + id + R"("}})";
     }},
    {"/generate_stream",
     [](const std::string& id) {
       return R"({"inputs":"a","parameters":{"max_new_tokens":2,"adapter_id":")" + id + R"("}})";
     }},
    {"/",
     [](const std::string& id) {
       return R"({"inputs":"a","stream":true,"parameters":{"max_new_tokens":2,"adapter_id":")" + id + R"("}})";
     }},
    {"/v1/completions",
     [](const std::string& id) { return R"({"prompt":"a","max_tokens":2,"n":2,"model":")" + id + R"("})"; }},
    {"/v1/completions",
     [](const std::string& id) { return R"({"prompt":"a","max_tokens":2,"stream":true,"model":")" + id + R"("})"; }},
    {"/v1/chat/completions",
     [](const std::string& id) {
       return R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2,"model":")" + id + R"("})";
     }},
    {"/embed", [](const std::string& id) { return R"({"inputs":"a","parameters":{"adapter_id":")" + id + R"("}})"; }},
    {"/v1/embeddings",
     [](const std::string& id) {
       return R"({"input":["a","b"],"model":"","parameters":{"adapter_id":")" + id + R"("}})";
     }},
};

bool is_error(const RawResponse& response) { return response.body.find("\"error\"") != std::string::npos; }

TEST(Access, AKeyWithRulesUsesTheirAdaptersAndTheBaseModel) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  for (const Route& route : kRoutes) {
    const auto refused = [&](const char* key, const char* adapter) {
      return is_error(post(service.port(), route.path, route.body(adapter), bearer(key)));
    };
    EXPECT_FALSE(refused("of-all", "alpha")) << route.path;
    EXPECT_FALSE(refused("of-org", "org/beta")) << route.path;
    EXPECT_TRUE(refused("of-org", "alpha")) << route.path;
    EXPECT_TRUE(refused("of-org", "org/../alpha")) << route.path;
    EXPECT_TRUE(refused("of-none", "org/beta")) << route.path;
    EXPECT_FALSE(refused("of-none", "")) << route.path;
  }
  EXPECT_EQ(service.engine.num_pins("alpha"), 0);
}

// There `model` need not be one that is served: what a key may not use is as little listed as what is not there.
TEST(Access, TheModelOfEmbeddingsThatAKeyMayNotUseIsTheBaseModel) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  const auto answer = [&](const char* key, const std::string& model) {
    return post(service.port(), "/v1/embeddings", R"({"input":"a","model":")" + model + R"("})", bearer(key));
  };
  const RawResponse base = answer("of-none", "");
  EXPECT_EQ(base.status, 200) << base.body;
  for (const char* model : {"alpha", "org/beta", "slow-x"}) {
    const RawResponse refused = answer("of-none", model);
    EXPECT_EQ(refused.status, 200) << refused.body;
    EXPECT_EQ(refused.body, base.body) << model;
  }
  EXPECT_EQ(service.engine.num_pins("alpha"), 0);
}

// But for what tells the time.
RawResponse without_times(RawResponse response) {
  response.headers.erase("date");
  response.headers.erase("x-request-id");
  return response;
}

TEST(Access, WhatMayNotBeUsedReadsAsWhatIsNotThere) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  for (const Route& route : kRoutes) {
    RawResponse absent;
    {
      const std::jthread failing([&service] {
        eventually([&] { return service.engine.num_pins("slow-x") > 0; });
        service.engine.fail_load("slow-x", {ErrorCode::kAdapterNotFound, "adapter 'slow-x' not found"});
      });
      absent = without_times(post(service.port(), route.path, route.body("slow-x"), bearer("of-all")));
    }
    const RawResponse forbidden =
        without_times(post(service.port(), route.path, route.body("slow-x"), bearer("of-org")));
    EXPECT_TRUE(is_error(absent)) << route.path;
    EXPECT_EQ(forbidden.status, absent.status) << route.path;
    EXPECT_EQ(forbidden.body, absent.body) << route.path;
    EXPECT_EQ(forbidden.headers, absent.headers) << route.path;
  }
}

TEST(Access, EachMemberOfAMergeMustBeAllowed) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  const auto merged = [&](const char* key, const char* ids) {
    return post(service.port(), "/generate",
                fmt::format(R"({{"inputs":"hello","parameters":{{"max_new_tokens":2,"merged_adapters":{{"ids":[{}],)"
                            R"("weights":[1,1]}}}}}})",
                            ids),
                bearer(key));
  };
  EXPECT_EQ(merged("of-all", R"("org/beta","alpha")").status, 200);
  EXPECT_EQ(merged("of-org", R"("org/beta","org/beta")").status, 200);
  for (const char* ids : {R"("org/beta","alpha")", R"("alpha","org/beta")"}) {
    const RawResponse refused = merged("of-org", ids);
    EXPECT_EQ(refused.status, 424);
    EXPECT_NE(refused.body.find("adapter 'alpha' not found"), std::string::npos) << refused.body;
  }
}

TEST(Access, ListsWhatTheCallerMayUse) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  const auto listed = [&](const char* key) {
    std::vector<std::string> ids;
    const InputJson models = json_of(get(service.port(), "/v1/models", bearer(key)).body);
    for (const InputJson& model : models["data"]) ids.push_back(model["id"].get<std::string>());
    return ids;
  };
  EXPECT_EQ(listed("of-all"), (std::vector<std::string>{"test/base", "alpha", "org/beta"}));
  EXPECT_EQ(listed("of-org"), (std::vector<std::string>{"test/base", "org/beta"}));
  EXPECT_EQ(listed("of-none"), (std::vector<std::string>{"test/base"}));
  EXPECT_EQ(get(service.port(), "/v1/models/alpha", bearer("of-all")).status, 200);
  const RawResponse forbidden = get(service.port(), "/v1/models/alpha", bearer("of-org"));
  EXPECT_EQ(forbidden.status, 404);
  EXPECT_EQ(forbidden.body.find("alpha"),
            get(service.port(), "/v1/models/nothin", bearer("of-org")).body.find("nothin"));
}

TEST(Access, KeysOfTheFileAreAskedForAndEnd) {
  const TestFolder dir;
  TestService service({}, options_of(dir));
  const auto answer = [&](const std::string& headers) {
    return post(service.port(), "/generate", kRoutes[0].body(""), headers);
  };
  EXPECT_EQ(answer("").status, 401);
  EXPECT_EQ(answer(bearer("of-nobody")).status, 401);
  EXPECT_EQ(answer(bearer("of-all")).status, 200);
  const RawResponse expired = answer(bearer("of-old"));
  EXPECT_EQ(expired.status, 401);
  EXPECT_NE(expired.body.find("has expired"), std::string::npos);
  EXPECT_EQ(expired.headers.at("www-authenticate"), "Bearer");
}

}  // namespace
}  // namespace shoal
