// Who is let in and for how long, as clients see it: tenants, keys, priorities, limits and timeouts.
#include <gtest/gtest.h>

#include <future>
#include <string>

#include "core/test_patience.h"
#include "server/caller.h"
#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::eventually;
using test::get;
using test::json_of;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

constexpr const char* kShort = R"({"inputs":"hello","parameters":{"max_new_tokens":2}})";
constexpr const char* kLong = R"({"inputs":"hello","parameters":{"max_new_tokens":900}})";
constexpr const char* kOpenAi = R"({"model":"","prompt":"hello","max_tokens":2})";
constexpr const char* kChat = R"({"model":"","messages":[{"role":"user","content":"hi"}],"max_tokens":2})";

// Tenant of a request with these headers, or the type of the error.
std::string tenant_of(const ServerOptions& options, const HttpHeaders& headers) {
  HttpRequest request;
  request.headers = headers;
  const auto caller = find_caller(ApiKeys(api_key_options(options)), request);
  if (const auto* error = std::get_if<ApiError>(&caller)) return failure_row(error->failure).error_type;
  return std::get<Caller>(caller).tenant;
}

TEST(Caller, WithoutKeysTheHeaderNamesTheTenant) {
  EXPECT_EQ(tenant_of({}, {}), "");
  EXPECT_EQ(tenant_of({}, {{"x-shoal-tenant", ""}}), "");
  EXPECT_EQ(tenant_of({}, {{"x-shoal-tenant", "a"}}), "header/a");
  EXPECT_EQ(tenant_of({}, {{"authorization", "Bearer any"}}), "");
  EXPECT_EQ(tenant_of({}, {{"x-shoal-tenant", std::string(128, 'a')}}), "header/" + std::string(128, 'a'));
  for (const std::string& bad :
       {std::string(129, 'a'), std::string("a b"), std::string("\xc3\xa9"), std::string("a\x01")}) {
    EXPECT_EQ(tenant_of({}, {{"x-shoal-tenant", bad}}), "validation") << bad;
  }
}

TEST(Caller, AKeyOfATenantSpeaksForItAlone) {
  ServerOptions options;
  options.tenant_api_keys = {{.tenant = "a", .key = "key-of-a"}, {.tenant = "b", .key = "key-of-b"}};
  EXPECT_EQ(tenant_of(options, {{"authorization", "Bearer key-of-a"}}), "key/a");
  EXPECT_EQ(tenant_of(options, {{"authorization", "bearer key-of-b"}, {"x-shoal-tenant", "a"}}), "key/b");
  EXPECT_EQ(tenant_of(options, {{"x-shoal-tenant", "a"}}), "unauthorized");
  EXPECT_EQ(tenant_of(options, {{"authorization", "Bearer key-of-c"}}), "unauthorized");
  EXPECT_EQ(tenant_of(options, {{"authorization", "Bearer "}}), "unauthorized") << "there is no key of all";
  options.api_key = "of-all";
  EXPECT_EQ(tenant_of(options, {{"authorization", "Bearer of-all"}, {"x-shoal-tenant", "a"}}), "header/a")
      << "not the tenant a of a key";
  EXPECT_EQ(tenant_of(options, {{"authorization", "Bearer key-of-a"}}), "key/a");
}

TEST(Admission, AHeaderThatNamesNoTenantIsRefusedInBothStyles) {
  TestService service;
  const std::string bad = "x-shoal-tenant: a b\r\n";
  const RawResponse native = post(service.port(), "/generate", kShort, bad);
  EXPECT_EQ(native.status, 422);
  EXPECT_EQ(json_of(native.body)["error_type"], "validation");
  const RawResponse openai = post(service.port(), "/v1/completions", kOpenAi, bad);
  EXPECT_EQ(openai.status, 400);
  EXPECT_EQ(json_of(openai.body)["error"]["param"], "x-shoal-tenant");
  EXPECT_EQ(get(service.port(), "/health", bad).status, 200);
  EXPECT_EQ(post(service.port(), "/generate", kShort, "x-shoal-tenant: a\r\n").status, 200);
}

// The place where one may run is taken by a request that is held.
class FullService {
 public:
  explicit FullService(test::ServiceSizes sizes) : service(with_one_place(sizes)), running_(service.port()) {
    service.engine.hold();
    running_.post("/generate", kLong, "x-shoal-tenant: a\r\n");
    service.engine.wait_until_held();
  }
  std::int32_t port() const { return service.port(); }
  void leave() {
    const std::size_t num_before = service.server.num_connections();
    running_.close();
    EXPECT_TRUE(eventually([&] { return service.server.num_connections() < num_before; }));
  }
  void finish() {
    running_.close();
    service.engine.resume();
    EXPECT_TRUE(service.comes_to_rest());
  }

  TestService service;

 private:
  static test::ServiceSizes with_one_place(test::ServiceSizes sizes) {
    sizes.max_sequences = 1;
    return sizes;
  }
  RawClient running_;
};

void expect_refused_as_overload(std::int32_t port, const std::string& headers = "") {
  const RawResponse native = post(port, "/generate", kShort, headers);
  EXPECT_EQ(native.status, 429);
  EXPECT_EQ(native.headers.at("retry-after"), "1");
  EXPECT_EQ(json_of(native.body)["error_type"], "overloaded");
  EXPECT_TRUE(json_of(native.body)["error"].get<std::string>().starts_with("Model is overloaded: "));
  for (const auto& [path, body] : {std::pair("/v1/completions", kOpenAi), std::pair("/v1/chat/completions", kChat)}) {
    const RawResponse openai = post(port, path, body, headers);
    EXPECT_EQ(openai.status, 429) << path;
    EXPECT_EQ(openai.headers.at("retry-after"), "1");
    EXPECT_EQ(json_of(openai.body)["error"]["type"], "rate_limit_error");
    EXPECT_EQ(json_of(openai.body)["error"]["code"], "overloaded");
  }
  RawClient stream(port);
  stream.post("/generate_stream", kShort, headers);
  EXPECT_EQ(stream.read_head().status, 200) << "as LoRAX's streams do";
  const auto event = stream.read_event();
  ASSERT_TRUE(event.has_value());
  EXPECT_NE(event->find(R"("error_type":"overloaded")"), std::string::npos) << *event;
}

TEST(Admission, AFullQueueAnswers429WithARetryTime) {
  FullService full({.max_queue = 0});
  expect_refused_as_overload(full.port());
  const std::string metrics = get(full.port(), "/metrics").body;
  EXPECT_NE(metrics.find("\nshoal_requests_rejected{reason=\"max_queue\"} 4\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nlorax_request_failure{err=\"overloaded\"} 4\n"), std::string::npos);
  full.finish();
  EXPECT_EQ(post(full.port(), "/generate", kShort).status, 200);
}

TEST(Admission, ATenantAtItsLimitGets429AndOthersDoNot) {
  FullService full({.max_requests_per_tenant = 1});
  expect_refused_as_overload(full.port(), "x-shoal-tenant: a\r\n");
  RawClient other(full.port());
  other.post("/generate", kShort, "x-shoal-tenant: b\r\n");
  ASSERT_TRUE(eventually([&] { return full.service.scheduler.stats().queued == 1; }));
  full.finish();
  EXPECT_EQ(other.read_response().status, 200);
  EXPECT_EQ(post(full.port(), "/generate", kShort, "x-shoal-tenant: a\r\n").status, 200);
}

TEST(Admission, WhatWaitsTooLongAnswers504InBothStyles) {
  TestService service({.request_timeout = milliseconds(60)});
  const RawResponse native = post(service.port(), "/generate",
                                  R"({"inputs":"hello","parameters":{"adapter_id":"slow-a","max_new_tokens":2}})");
  EXPECT_EQ(native.status, 504);
  EXPECT_EQ(json_of(native.body)["error_type"], "timeout");
  const RawResponse openai =
      post(service.port(), "/v1/completions", R"({"model":"slow-a","prompt":"hello","max_tokens":2})");
  EXPECT_EQ(openai.status, 504);
  EXPECT_EQ(json_of(openai.body)["error"]["code"], "timeout");
  EXPECT_TRUE(service.comes_to_rest());
  EXPECT_NE(get(service.port(), "/metrics").body.find("\nshoal_requests_timed_out{stage=\"queued\"} 2\n"),
            std::string::npos);
}

TEST(Admission, AStreamThatRunsTooLongEndsWithAnErrorEvent) {
  for (const bool openai : {false, true}) {
    TestService service({.request_timeout = milliseconds(1000)});  // three steps take far less, even under a sanitizer
    service.engine.hold();
    RawClient client(service.port());
    if (openai) {
      client.post("/v1/completions", R"({"model":"","prompt":"hello","max_tokens":900,"stream":true})");
    } else {
      client.post("/generate_stream", kLong);
    }
    service.engine.allow(3);
    EXPECT_EQ(client.read_head().status, 200);
    ASSERT_TRUE(eventually([&] { return service.scheduler.stats().generated_tokens == 3; }));
    std::this_thread::sleep_for(milliseconds(1050));
    service.engine.resume();
    std::string last;
    int num_events = 0;
    while (const auto event = client.read_event()) {
      last = *event;
      ++num_events;
    }
    EXPECT_LE(num_events, 6) << "the step that was held, and the error";
    EXPECT_NE(last.find("the answer was not whole after 1 s"), std::string::npos) << last;
    EXPECT_NE(last.find(openai ? R"("code":"timeout")" : R"("error_type":"timeout")"), std::string::npos) << last;
    EXPECT_TRUE(service.comes_to_rest());
    EXPECT_EQ(service.scheduler.stats().timed_out_running, 1);
  }
}

TEST(Admission, TheHigherPriorityStartsFirstOnAllGeneratingRoutes) {
  const std::string completion = R"({"model":"","prompt":"hello","max_tokens":2,"priority":3})";
  const std::string chat = R"({"model":"","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"priority":3})";
  const std::string native = R"({"inputs":"hello","parameters":{"max_new_tokens":2,"priority":3}})";
  for (const auto& [path, body] : {std::pair<std::string, std::string>{"/generate", native},
                                   {"/generate_stream", native},
                                   {"/", native},
                                   {"/v1/completions", completion},
                                   {"/v1/chat/completions", chat}}) {
    FullService full({});
    RawClient low(full.port());
    low.post("/generate", R"({"inputs":"hello","parameters":{"max_new_tokens":900,"priority":-1}})");
    ASSERT_TRUE(eventually([&] { return full.service.scheduler.stats().queued == 1; }));
    RawClient high(full.port());
    high.post(path, body);
    ASSERT_TRUE(eventually([&] { return full.service.scheduler.stats().queued == 2; }));
    full.leave();
    full.service.engine.allow(5);  // the one that is held, two of the high priority, two of the low
    EXPECT_TRUE(eventually([&] { return full.service.scheduler.stats().finished == 1; })) << path;
    EXPECT_EQ(high.read_head().status, 200) << path;
    low.close();
    full.finish();
  }
}

}  // namespace
}  // namespace shoal
