// Names for adapters: loaded, used, listed, replaced and unloaded, by whom and while what runs.
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
using test::json_events_of;
using test::json_of;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::ServiceSizes;
using test::TestFolder;
using test::TestService;

std::string load_body(const std::string& name, const std::string& path, const std::string& more = "") {
  return fmt::format(R"({{"lora_name":"{}","lora_path":"{}"{}}})", name, path, more);
}

RawResponse load(const TestService& service, const std::string& name, const std::string& path,
                 const std::string& more = "", const std::string& headers = "") {
  return post(service.port(), "/v1/load_lora_adapter", load_body(name, path, more), headers);
}

RawResponse unload(const TestService& service, const std::string& name, const std::string& headers = "") {
  return post(service.port(), "/v1/unload_lora_adapter", fmt::format(R"({{"lora_name":"{}"}})", name), headers);
}

constexpr const char* kInPlace = R"(,"load_inplace":true)";

std::string bearer(const std::string& key) { return "authorization: Bearer " + key + "\r\n"; }

RawResponse generate(const TestService& service, const std::string& adapter, const std::string& headers = "",
                     const std::string& more = "") {
  return post(service.port(), "/generate",
              fmt::format(R"({{"inputs":"hello there, you","parameters":{{"max_new_tokens":6,"details":true,)"
                          R"("ignore_eos_token":true,"adapter_id":"{}"{}}}}})",
                          adapter, more),
              headers);
}

std::vector<std::int64_t> ids_of(const RawResponse& response) {
  std::vector<std::int64_t> ids;
  EXPECT_EQ(response.status, 200) << response.body;
  if (response.status != 200) return ids;
  const InputJson answer = json_of(response.body);
  for (const InputJson& token : answer["details"]["tokens"]) {
    ids.push_back(token["id"].get<std::int64_t>());
  }
  return ids;
}

std::vector<std::int64_t> solo(const TestService& service, const std::string& adapter) {
  return service.solo_ids("hello there, you", 6, adapter);
}

std::string error_of(const RawResponse& response, const char* key = "message") {
  const InputJson value = json_of(response.body).at("error").at(key);
  return value.is_null() ? "" : value.get<std::string>();
}

std::vector<std::string> listed(const TestService& service, const std::string& headers = "") {
  std::vector<std::string> ids;
  const InputJson models = json_of(get(service.port(), "/v1/models", headers).body);
  for (const InputJson& model : models["data"]) {
    ids.push_back(model["id"].get<std::string>());
  }
  return ids;
}

TEST(LoadAdapter, ANameServesUntilItIsUnloaded) {
  TestService service;
  const RawResponse loaded = load(service, "missing-name", "org/beta");
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(loaded.headers.at("content-type"), "text/plain; charset=utf-8");
  EXPECT_TRUE(loaded.body.starts_with("Success: ")) << loaded.body;
  EXPECT_NE(loaded.body.find("'missing-name'"), std::string::npos);

  const RawResponse answer = generate(service, "missing-name");
  EXPECT_EQ(ids_of(answer), solo(service, "org/beta"));
  EXPECT_EQ(answer.headers.at("x-adapter-id"), "missing-name");
  EXPECT_EQ(listed(service), (std::vector<std::string>{"test/base", "alpha", "org/beta", "missing-name"}));
  const InputJson model = json_of(get(service.port(), "/v1/models/missing-name").body);
  EXPECT_EQ(model["root"], "org/beta");
  EXPECT_EQ(model["parent"], "test/base");

  const RawResponse gone = unload(service, "missing-name");
  EXPECT_EQ(gone.status, 200) << gone.body;
  EXPECT_TRUE(gone.body.starts_with("Success: ")) << gone.body;
  EXPECT_EQ(listed(service), (std::vector<std::string>{"test/base", "alpha", "org/beta"}));
  EXPECT_EQ(get(service.port(), "/v1/models/missing-name").status, 404);
  EXPECT_EQ(generate(service, "missing-name").status, 424);
  const RawResponse chat =
      post(service.port(), "/v1/completions", R"({"model":"missing-name","prompt":"a","max_tokens":2})");
  EXPECT_EQ(chat.status, 404);
  EXPECT_EQ(error_of(chat, "code"), "model_not_found");
  const RawResponse again = unload(service, "missing-name");
  EXPECT_EQ(again.status, 404);
  EXPECT_NE(error_of(again).find("'missing-name' cannot be found"), std::string::npos);
}

TEST(LoadAdapter, EachRouteTakesTheName) {
  TestService service;
  ASSERT_EQ(load(service, "missing-name", "org/beta").status, 200);
  // Each with the name and with what it stands for; what tells the time or is drawn is left out.
  const std::pair<const char*, const char*> routes[] = {
      {"/generate", R"({{"inputs":"a","parameters":{{"max_new_tokens":4,"adapter_id":"{}"}}}})"},
      {"/generate_stream", R"({{"inputs":"a","parameters":{{"max_new_tokens":4,"adapter_id":"{}"}}}})"},
      {"/", R"({{"inputs":"a","stream":true,"parameters":{{"max_new_tokens":4,"adapter_id":"{}"}}}})"},
      {"/generate",
       R"({{"inputs":"a","parameters":{{"max_new_tokens":4,"best_of":2,"do_sample":true,"adapter_id":"{}",)"
       R"("temperature":0}}}})"},
      {"/embed", R"({{"inputs":"a","parameters":{{"adapter_id":"{}"}}}})"},
      {"/generate", R"({{"inputs":"a","parameters":{{"max_new_tokens":4,"merged_adapters":{{"ids":["{}","alpha"],)"
                    R"("weights":[1,0.5]}}}}}})"},
      {"/generate", R"({{"inputs":"a","parameters":{{"max_new_tokens":4,"merged_adapters":{{"ids":["{}"],)"
                    R"("weights":[1]}}}}}})"}};
  for (const auto& [path, body] : routes) {
    const RawResponse named = post(service.port(), path, fmt::format(fmt::runtime(body), "missing-name"));
    const RawResponse direct = post(service.port(), path, fmt::format(fmt::runtime(body), "org/beta"));
    EXPECT_EQ(named.status, 200) << body << named.body;
    EXPECT_EQ(named.body, direct.body) << body;
  }
  const std::pair<const char*, const char*> openai[] = {
      {"/v1/completions", R"({{"prompt":"a","max_tokens":4,"temperature":0,"model":"{}"}})"},
      {"/v1/chat/completions",
       R"({{"messages":[{{"role":"user","content":"a"}}],"max_tokens":4,"temperature":0,"model":"{}"}})"},
      {"/v1/embeddings", R"({{"input":["a","b"],"model":"{}"}})"}};
  for (const auto& [path, body] : openai) {
    InputJson named = json_of(post(service.port(), path, fmt::format(fmt::runtime(body), "missing-name")).body);
    InputJson direct = json_of(post(service.port(), path, fmt::format(fmt::runtime(body), "org/beta")).body);
    EXPECT_EQ(named["model"], "missing-name") << named.dump();
    for (const char* part : {"choices", "data", "usage"}) EXPECT_EQ(named[part], direct[part]) << path << part;
  }
}

TEST(LoadAdapter, RefusesWithTheFieldWhatWasFoundAndWhatWasExpected) {
  ServerOptions options;
  options.max_runtime_adapters = 1;
  TestService service({}, options);
  const auto refused = [&](const std::string& body, int status, const char* param, const char* words) {
    const RawResponse response = post(service.port(), "/v1/load_lora_adapter", body);
    EXPECT_EQ(response.status, status) << body << response.body;
    EXPECT_EQ(error_of(response, "param"), param) << response.body;
    EXPECT_NE(error_of(response).find(words), std::string::npos) << response.body;
  };
  refused("[]", 400, "", "expected an object");
  refused(R"({"lora_path":"alpha"})", 400, "lora_name", "`lora_name`: missing field");
  refused(R"({"lora_name":"x"})", 400, "lora_path", "`lora_path`: missing field");
  refused(R"({"lora_name":7,"lora_path":"alpha"})", 400, "lora_name", "expected a string");
  refused(load_body("x", "alpha", R"(,"load_inplace":1)"), 400, "load_inplace", "expected a boolean");
  refused(load_body("", "alpha"), 400, "lora_name", "must not be empty");
  refused(load_body("x", ""), 400, "lora_path", "must not be empty");
  refused(load_body("a\\nb", "alpha"), 400, "lora_name", "control characters");
  refused(load_body("x", "a\\u0000b"), 400, "lora_path", "control characters");
  refused(load_body(std::string(513, 'x'), "alpha"), 400, "lora_name", "at most 512 bytes");
  refused(load_body("x", std::string(513, 'x')), 400, "lora_path", "at most 512 bytes");
  refused(load_body("test/base", "alpha"), 400, "lora_name", "given: 'test/base'");
  refused(load_body("__base_model__", "alpha"), 400, "lora_name", "base model");
  refused(load_body("alpha", "org/beta"), 400, "lora_name", "id of another adapter of the source local");
  refused(load_body("x", "hub:org/name"), 400, "lora_path", "source 'hub' is not served");
  refused(load_body("x", "s3://bucket/name"), 400, "lora_path", "source 's3' is not served");
  refused(load_body("x", "local:"), 400, "lora_path", "names no adapter");
  refused(load_body("x", "missing-a"), 404, "lora_path", "'x' cannot be loaded: adapter 'missing-a' not found");
  EXPECT_EQ(listed(service).size(), 3U) << "none of these left a name";
  ASSERT_EQ(load(service, "x", "alpha").status, 200);
  refused(load_body("x", "org/beta"), 400, "lora_name", "'x' has already been loaded from 'alpha'");
  refused(load_body("y", "alpha"), 400, "lora_name", "1 may be loaded at once");
  EXPECT_EQ(error_of(load(service, "x", "alpha"), "code"), "adapter_already_loaded");
  EXPECT_EQ(error_of(load(service, "y", "alpha"), "code"), "too_many_adapters");
  EXPECT_EQ(unload(service, "").status, 400);
  EXPECT_EQ(post(service.port(), "/v1/unload_lora_adapter", R"({"lora_int_id":1})").status, 400);
  EXPECT_EQ(post(service.port(), "/v1/unload_lora_adapter", R"({"lora_name":"x","lora_int_id":1})").status, 200);
}

TEST(LoadAdapter, TheIdOfTheSameAdapterIsAName) {
  TestService service;
  EXPECT_EQ(load(service, "alpha", "local:alpha").status, 200);
  EXPECT_EQ(listed(service), (std::vector<std::string>{"test/base", "org/beta", "alpha"})) << "once";
  EXPECT_EQ(unload(service, "alpha").status, 200);
  EXPECT_EQ(ids_of(generate(service, "alpha")), solo(service, "alpha")) << "as without a name";
}

TEST(LoadAdapter, AnswersOnceTheAdapterIsThere) {
  TestService service;
  RawClient loading(service.port());
  loading.post("/v1/load_lora_adapter", load_body("missing-name", "slow-a"));
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  EXPECT_EQ(ids_of(generate(service, "alpha")), solo(service, "alpha")) << "steps go on";
  EXPECT_EQ(generate(service, "missing-name").status, 424) << "it is not there yet";
  EXPECT_EQ(listed(service).size(), 3U);
  service.engine.complete_load("slow-a");
  EXPECT_EQ(loading.read_response().status, 200);
  EXPECT_EQ(ids_of(generate(service, "missing-name")), solo(service, "slow-a"));
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(LoadAdapter, AFailedLoadLeavesWhatWasThere) {
  TestService service;
  ASSERT_EQ(load(service, "missing-name", "alpha").status, 200);
  RawClient loading(service.port());
  loading.post("/v1/load_lora_adapter", load_body("missing-name", "slow-a", kInPlace));
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  service.engine.fail_load("slow-a", {ErrorCode::kAdapterInvalid, "tensor 'x' has 3 rows, expected 4"});
  const RawResponse refused = loading.read_response();
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error_of(refused, "code"), "adapter_invalid");
  EXPECT_EQ(error_of(refused),
            "the LoRA adapter 'missing-name' cannot be loaded: adapter 'slow-a': tensor 'x' has 3 rows, expected 4");
  EXPECT_EQ(ids_of(generate(service, "missing-name")), solo(service, "alpha"));
}

TEST(LoadAdapter, OfTwoLoadsOfOneNameOneIsRefused) {
  TestService service;
  RawClient first(service.port());
  first.post("/v1/load_lora_adapter", load_body("missing-name", "slow-a"));
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  EXPECT_EQ(load(service, "missing-name", "alpha").status, 200);
  service.engine.complete_load("slow-a");
  const RawResponse refused = first.read_response();
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(error_of(refused).find("has already been loaded from 'alpha'"), std::string::npos);
  EXPECT_EQ(ids_of(generate(service, "missing-name")), solo(service, "alpha"));
}

TEST(LoadAdapter, AClientThatLeavesLoadsNothing) {
  TestService service;
  {
    RawClient loading(service.port());
    loading.post("/v1/load_lora_adapter", load_body("missing-name", "slow-a"));
    ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  }
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 0; }));
  service.engine.complete_load("slow-a");
  EXPECT_EQ(generate(service, "missing-name").status, 424);
  EXPECT_EQ(service.engine.adapter_stats().tiers.host_adapters, 0) << "nobody needs it";
}

TEST(LoadAdapter, UnloadingHarmsNoRequestThatRunsAndGivesMemoryBackAfterIt) {
  TestService service;
  ASSERT_EQ(load(service, "missing-name", "org/beta").status, 200);
  service.engine.hold();
  RawClient running(service.port());
  running.post("/generate", R"({"inputs":"hello there, you","parameters":{"max_new_tokens":6,"details":true,)"
                            R"("ignore_eos_token":true,"adapter_id":"missing-name"}})");
  service.engine.wait_until_held();
  EXPECT_EQ(unload(service, "missing-name").status, 200);
  EXPECT_EQ(service.engine.adapter_stats().tiers.device_adapters, 1) << "in use";
  service.engine.resume();
  EXPECT_EQ(ids_of(running.read_response()), solo(service, "org/beta"));
  EXPECT_TRUE(eventually([&] { return service.engine.adapter_stats().tiers.device_adapters == 0; }));
  EXPECT_EQ(service.engine.adapter_stats().tiers.host_bytes, 0);

  ASSERT_EQ(load(service, "missing-name", "org/beta").status, 200);
  EXPECT_EQ(service.engine.adapter_stats().tiers.host_adapters, 1);
  EXPECT_EQ(unload(service, "missing-name").status, 200);
  EXPECT_TRUE(eventually([&] { return service.engine.adapter_stats().tiers.host_adapters == 0; })) << "nobody used it";
}

TEST(LoadAdapter, WhatIsAlsoUsedByItsIdStaysInMemory) {
  TestService service;
  ASSERT_EQ(load(service, "missing-name", "org/beta").status, 200);
  EXPECT_EQ(generate(service, "org/beta").status, 200);
  EXPECT_EQ(generate(service, "missing-name").status, 200);
  EXPECT_EQ(unload(service, "missing-name").status, 200);
  EXPECT_TRUE(service.comes_to_rest());
  const std::int64_t loads = service.engine.adapter_stats().tiers.loads;
  EXPECT_EQ(generate(service, "org/beta").status, 200);
  EXPECT_EQ(service.engine.adapter_stats().tiers.loads, loads);
}

TEST(LoadAdapter, InPlaceServesTheOtherContentAndNoCachedTextOfTheFirst) {
  TestService service({.prefix_caching = true});
  const std::string prompt(100, 'a');
  const auto answer = [&] {
    return ids_of(post(service.port(), "/generate",
                       fmt::format(R"({{"inputs":"{}","parameters":{{"max_new_tokens":6,"details":true,)"
                                   R"("ignore_eos_token":true,"adapter_id":"missing-name"}}}})",
                                   prompt)));
  };
  const auto hits = [&] { return service.scheduler.stats().prefix.hits; };
  ASSERT_EQ(load(service, "missing-name", "alpha").status, 200);
  EXPECT_EQ(answer(), service.solo_ids(prompt, 6, "alpha"));
  EXPECT_EQ(answer(), service.solo_ids(prompt, 6, "alpha"));
  EXPECT_EQ(hits(), 1);
  ASSERT_EQ(load(service, "missing-name", "org/beta", kInPlace).status, 200);
  EXPECT_EQ(answer(), service.solo_ids(prompt, 6, "org/beta"));
  EXPECT_EQ(hits(), 1);
  // The same path with other files.
  service.engine.replace_adapter("org/beta");
  ASSERT_EQ(load(service, "missing-name", "org/beta", kInPlace).status, 200);
  EXPECT_EQ(answer(), service.solo_ids(prompt, 6, "org/beta"));
  EXPECT_EQ(hits(), 1);
  EXPECT_TRUE(service.comes_to_rest());
  EXPECT_EQ(service.engine.adapter_stats().tiers.device_adapters, 1) << "nothing of what was replaced is left";
}

TEST(LoadAdapter, InPlaceReadsTheFilesAgain) {
  TestService service;
  ASSERT_EQ(load(service, "missing-name", "alpha").status, 200);
  const std::int64_t loads = service.engine.adapter_stats().tiers.loads;
  ASSERT_EQ(load(service, "missing-name", "alpha", kInPlace).status, 200);
  EXPECT_EQ(service.engine.adapter_stats().tiers.loads, loads + 1);
}

TEST(LoadAdapter, ARequestThatNamesASourceMeansNoName) {
  ServerOptions options;
  options.adapter_sources = {"hub", "local"};
  TestService service({}, options);
  ASSERT_EQ(load(service, "missing-name", "hub:org/beta").status, 200);
  EXPECT_EQ(generate(service, "missing-name", "", R"(,"adapter_source":"local")").status, 200) << "the default one";
  const RawResponse answer = generate(service, "missing-name");
  EXPECT_EQ(answer.headers.at("x-adapter-source"), "hub");
  EXPECT_EQ(generate(service, "missing-name", "", R"(,"adapter_source":"hub")").status, 424);
  EXPECT_EQ(json_of(get(service.port(), "/v1/models/missing-name").body)["root"], "hub:org/beta");
  const RawResponse merged = post(service.port(), "/generate",
                                  R"({"inputs":"a","parameters":{"merged_adapters":{"ids":["missing-name","alpha"],)"
                                  R"("weights":[1,1]}}})");
  EXPECT_EQ(merged.status, 424);
  EXPECT_NE(merged.body.find("'missing-name' was loaded from the source hub, the merge is of local"), std::string::npos)
      << merged.body;
}

TEST(LoadAdapter, AnErrorOfANameTellsTheNameAndThePath) {
  TestService service;
  RawClient loading(service.port());
  loading.post("/v1/load_lora_adapter", load_body("support", "slow-a"));
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  service.engine.complete_load("slow-a");
  ASSERT_EQ(loading.read_response().status, 200);
  service.engine.replace_adapter("slow-a");
  RawClient asking(service.port());
  asking.post("/v1/completions", R"({"model":"support","prompt":"a","max_tokens":2})");
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  service.engine.fail_load("slow-a", {ErrorCode::kAdapterNotFound, "adapter 'slow-a' not found"});
  EXPECT_EQ(error_of(asking.read_response()), "adapter 'support': adapter 'slow-a' not found");
}

constexpr const char* kKeys = R"({"keys":[
  {"key":"of-all","tenant":"all"},
  {"key":"of-org","tenant":"org","adapters":["org/*","missing*"]},
  {"key":"of-org-2","tenant":"org"},
  {"key":"of-none","tenant":"none","adapters":[]}]})";

struct KeyedService {
  KeyedService() {
    dir.write("keys.json", kKeys);
    ServerOptions options;
    options.api_key_file = dir.path() / "keys.json";
    service.emplace(ServiceSizes{}, options);
  }
  TestFolder dir;
  std::optional<TestService> service;
};

TEST(LoadAdapter, ANameIsItsTenantsAlone) {
  KeyedService keyed;
  TestService& service = *keyed.service;
  EXPECT_EQ(load(service, "missing-x", "alpha", "").status, 401);
  ASSERT_EQ(load(service, "missing-x", "alpha", "", bearer("of-all")).status, 200);
  EXPECT_EQ(generate(service, "missing-x", bearer("of-org")).status, 424);
  EXPECT_EQ(unload(service, "missing-x", bearer("of-org")).status, 404);
  EXPECT_EQ(listed(service, bearer("of-org-2")), (std::vector<std::string>{"test/base", "alpha", "org/beta"}));
  ASSERT_EQ(load(service, "missing-x", "org/beta", "", bearer("of-org")).status, 200) << "another tenant's name";
  EXPECT_EQ(ids_of(generate(service, "missing-x", bearer("of-org-2"))), solo(service, "org/beta")) << "the same tenant";
  EXPECT_EQ(ids_of(generate(service, "missing-x", bearer("of-all"))), solo(service, "alpha"));
  EXPECT_EQ(unload(service, "missing-x", bearer("of-org-2")).status, 200);
  EXPECT_EQ(ids_of(generate(service, "missing-x", bearer("of-all"))), solo(service, "alpha"));
}

TEST(LoadAdapter, BothNameAndPathMustBeAllowedAtEachUse) {
  KeyedService keyed;
  TestService& service = *keyed.service;
  for (const auto& [name, path, missed] : {std::tuple{"other", "org/beta", "other"},
                                           {"missing-x", "alpha", "alpha"},
                                           {"missing-x", "org/../alpha", "org/../alpha"},
                                           {"missing-x", "/org/beta", "/org/beta"}}) {
    const RawResponse refused = load(service, name, path, "", bearer("of-org"));
    EXPECT_EQ(refused.status, 404) << refused.body;
    EXPECT_EQ(error_of(refused), fmt::format("adapter '{}' not found", missed));
  }
  EXPECT_EQ(load(service, "missing-x", "org/beta", "", bearer("of-none")).status, 404);
  EXPECT_EQ(service.engine.num_pins(), 0);

  // A wider key of the tenant gives names that a narrower one may not use.
  ASSERT_EQ(load(service, "missing-x", "alpha", "", bearer("of-org-2")).status, 200);
  ASSERT_EQ(load(service, "other", "org/beta", "", bearer("of-org-2")).status, 200);
  EXPECT_EQ(listed(service, bearer("of-org")), (std::vector<std::string>{"test/base", "org/beta"}));
  for (const char* name : {"missing-x", "other"}) {
    const RawResponse refused = generate(service, name, bearer("of-org"));
    EXPECT_EQ(refused.status, 424);
    EXPECT_NE(refused.body.find(fmt::format("adapter '{}' not found", name)), std::string::npos) << refused.body;
    EXPECT_EQ(unload(service, name, bearer("of-org")).body, [&] {
      std::string absent = unload(service, "missing-z", bearer("of-org")).body;
      return absent.replace(absent.find("missing-z"), 9, name);
    }());
    EXPECT_EQ(load(service, name, "org/beta", kInPlace, bearer("of-org")).status, 404);
    EXPECT_EQ(generate(service, name, bearer("of-org-2")).status, 200) << "still there";
  }
  const RawResponse merged = post(service.port(), "/generate",
                                  R"({"inputs":"a","parameters":{"merged_adapters":{"ids":["org/beta","missing-x"],)"
                                  R"("weights":[1,1]}}})",
                                  bearer("of-org"));
  EXPECT_EQ(merged.status, 424);
  EXPECT_NE(merged.body.find("adapter 'missing-x' not found"), std::string::npos) << merged.body;
}

TEST(LoadAdapter, LimitsOfRequestsAndTheEndOfTheServerHoldForLoads) {
  ServiceSizes sizes{.request_timeout = std::chrono::milliseconds(50)};
  TestService service(sizes);
  const RawResponse late = load(service, "missing-name", "slow-a");
  EXPECT_EQ(late.status, 504) << late.body;
  EXPECT_TRUE(service.comes_to_rest());
  service.server.set_ready(false);
  EXPECT_EQ(load(service, "missing-name", "alpha").status, 503);
  EXPECT_EQ(unload(service, "missing-name").status, 503);
}

TEST(LoadAdapter, IsNotServedWhereThereIsNoRoomForNames) {
  ServerOptions options;
  options.max_runtime_adapters = 0;
  TestService service({}, options);
  for (const RawResponse& refused : {load(service, "x", "alpha"), unload(service, "x")}) {
    EXPECT_EQ(refused.status, 404);
    EXPECT_EQ(error_of(refused, "code"), "unknown_url");
    EXPECT_NE(error_of(refused).find("--max-runtime-adapters"), std::string::npos);
  }
}

}  // namespace
}  // namespace shoal
