#include "server/server.h"

#include <gtest/gtest.h>

#include <future>

#include "core/test_patience.h"
#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::eventually;
using test::get;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::ServiceSizes;
using test::TestService;

InputJson json_of(const std::string& text) { return InputJson::parse(text); }

constexpr const char* kLong = R"({"inputs":"hello","parameters":{"max_new_tokens":900}})";
constexpr const char* kShort = R"({"inputs":"hello","parameters":{"max_new_tokens":2}})";

// --- what every route shares ---

TEST(Server, RefusesByPathMethodTypeAndSyntax) {
  TestService service;
  const std::int32_t port = service.port();
  EXPECT_EQ(get(port, "/nowhere").status, 404);
  EXPECT_EQ(json_of(get(port, "/nowhere").body)["error_type"], "not_found");
  EXPECT_EQ(json_of(get(port, "/v1/nowhere").body)["error"]["code"], "unknown_url");
  const RawResponse wrong_method = get(port, "/generate");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at("allow"), "POST");
  EXPECT_EQ(post(port, "/info", "{}").headers.at("allow"), "GET,HEAD");
  RawClient client(port);
  client.send("POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_response().status, 415);
  client.send("POST /generate HTTP/1.1\r\nhost: h\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_response().status, 415);
  client.send(
      "POST /generate HTTP/1.1\r\nhost: h\r\ncontent-type: Application/vnd.x+JSON; charset=utf-8\r\n"
      "content-length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_response().status, 422);
  for (const char* path :
       {"/generate", "/generate_stream", "/", "/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    EXPECT_EQ(post(port, path, "{\"inputs\":").status, 400) << path;
    EXPECT_EQ(post(port, path, "").status, 400) << path;
    EXPECT_EQ(post(port, path, std::string(100'000, '[')).status, 400) << path;
    const bool openai = std::string_view(path).starts_with("/v1/");
    EXPECT_EQ(post(port, path, "{}").status, openai ? 400 : 422) << path;
    EXPECT_EQ(post(port, path, "[]").status, openai ? 400 : 422) << path;
    EXPECT_EQ(post(port, path, std::string(3 << 20, ' ')).status, 413) << path;
  }
  EXPECT_EQ(get(port, "/ping").status, 200);
}

TEST(Server, AnyOriginMayCall) {
  TestService service;
  RawClient client(service.port());
  client.send(
      "OPTIONS /generate HTTP/1.1\r\nhost: h\r\norigin: http://page\r\naccess-control-request-method: POST\r\n\r\n");
  const RawResponse preflight = client.read_response();
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "GET, POST");
  EXPECT_NE(preflight.headers.at("access-control-allow-headers").find("authorization"), std::string::npos);
  client.get("/nowhere", "origin: http://page\r\n");
  EXPECT_EQ(client.read_response().headers.at("access-control-allow-origin"), "*");
  client.post("/generate_stream", kShort, "origin: http://page\r\n");
  EXPECT_EQ(client.read_response().headers.at("access-control-allow-origin"), "*");
}

TEST(Server, NamedOriginsAloneMayCall) {
  ServerOptions options;
  options.cors.allow_origins = {"http://good"};
  TestService service({}, options);
  EXPECT_EQ(get(service.port(), "/ping", "origin: http://good\r\n").headers.at("access-control-allow-origin"),
            "http://good");
  EXPECT_FALSE(get(service.port(), "/ping", "origin: http://bad\r\n").headers.contains("access-control-allow-origin"));
}

TEST(Server, AnApiKeyGuardsAllButHealthAndMetrics) {
  ServerOptions options;
  options.api_key = "secret";
  TestService service({}, options);
  EXPECT_EQ(post(service.port(), "/generate", kShort).status, 401);
  EXPECT_EQ(post(service.port(), "/generate", kShort, "authorization: Bearer wrong!\r\n").status, 401);
  EXPECT_EQ(post(service.port(), "/v1/completions", "{}", "authorization: Bearer secre\r\n").status, 401);
  EXPECT_EQ(post(service.port(), "/generate", kShort, "authorization: bearer secret\r\n").status, 200);
  EXPECT_EQ(get(service.port(), "/v1/models").status, 401);
  EXPECT_EQ(get(service.port(), "/health").status, 200);
}

// --- what the server says about itself ---

TEST(Server, ListsModels) {
  TestService service;
  const InputJson models = json_of(get(service.port(), "/v1/models").body);
  ASSERT_EQ(models["data"].size(), 3U);
  EXPECT_EQ(models["data"][0]["id"], "test/base");
  EXPECT_EQ(models["data"][2]["id"], "org/beta");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(service.port(), "/v1/models").status, 200);
  EXPECT_EQ(service.num_lists, 1) << "the adapter folder is read for every request";
  EXPECT_EQ(json_of(get(service.port(), "/v1/models/org/beta").body)["parent"], "test/base");
  EXPECT_EQ(json_of(get(service.port(), "/v1/models/org%2Fbeta").body)["id"], "org/beta");
  EXPECT_EQ(get(service.port(), "/v1/models/nothing").status, 404);
}

TEST(Server, TellsItsLimits) {
  TestService service;
  const InputJson info = json_of(get(service.port(), "/info").body);
  EXPECT_EQ(info["model_id"], "test/base");
  EXPECT_EQ(info["model_dtype"], "torch.float32");
  EXPECT_EQ(info["max_input_length"], 1000);
  EXPECT_EQ(info["max_total_tokens"], 1024);
  EXPECT_TRUE(info.contains("docker_label"));
}

TEST(Tokenize, AnswersPiecesAndOffsetsInOneLine) {
  TestService service;
  const RawResponse response = post(service.port(), "/tokenize", R"({"inputs":"hello\""})");
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  EXPECT_EQ(response.body, R"([{"id":256,"text":"he","start":0,"stop":2},{"id":257,"text":"ll","start":2,"stop":4},)"
                           R"({"id":111,"text":"o","start":4,"stop":5},{"id":34,"text":"\"","start":5,"stop":6}])");
  EXPECT_EQ(post(service.port(), "/tokenize", R"({"inputs":""})").body, "[]");
  EXPECT_EQ(post(service.port(), "/tokenize", R"({"inputs":5})").status, 422);
}

std::string tokenize_body(std::size_t text_bytes) { return R"({"inputs":")" + std::string(text_bytes, 'x') + "\"}"; }

TEST(Tokenize, RefusesATextThatIsTooLongWithTheNumbers) {
  TestService service;  // prompts of 1000 tokens: the least limit counts
  const RawResponse longest = post(service.port(), "/tokenize", tokenize_body(256 << 10));
  EXPECT_EQ(longest.status, 200);
  EXPECT_EQ(json_of(longest.body).size(), 256U << 10);
  const RawResponse refused = post(service.port(), "/tokenize", tokenize_body((256 << 10) + 1));
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(json_of(refused.body)["error"],
            "Input validation error: `inputs` must have at most 262144 bytes, given: 262145");
}

// An answer of 50 times as many bytes: sockets that nobody reads from buffer some 4 MB.
constexpr std::size_t kMoreThanSocketsBuffer = std::size_t{128} << 10;

TEST(Tokenize, HoldsOneLargeAnswerAtATime) {
  TestService service;
  const std::string large = tokenize_body(kMoreThanSocketsBuffer);
  RawClient first(service.port());
  first.post("/tokenize", large);
  EXPECT_EQ(first.read_head().status, 200);
  RawClient left(service.port());
  left.post("/tokenize", large);
  RawClient second(service.port());
  second.post("/tokenize", large);
  auto answered = std::async(std::launch::async, [&second] { return second.read_response(); });
  EXPECT_EQ(answered.wait_for(milliseconds(500)), std::future_status::timeout);
  EXPECT_EQ(post(service.port(), "/tokenize", R"({"inputs":"hello"})").status, 200) << "small ones need no turn";
  left.close();
  first.close();
  EXPECT_EQ(answered.get().status, 200);
  EXPECT_EQ(post(service.port(), "/tokenize", large).status, 200);
}

TEST(Tokenize, ASlowReaderOfALargeAnswerIsCutOff) {
  ServerOptions options;
  options.large_answer_limit = milliseconds(200);
  TestService service({}, options);
  RawClient slow(service.port());
  slow.post("/tokenize", tokenize_body(kMoreThanSocketsBuffer));
  EXPECT_EQ(slow.read_head().status, 200);
  RawClient second(service.port());
  second.post("/tokenize", tokenize_body(8 << 10));
  EXPECT_EQ(second.read_response().status, 200);
  EXPECT_TRUE(eventually([&] { return service.server.num_connections() == 1; }));
}

TEST(Detokenize, GivesBackTheTextOfTokens) {
  TestService service;
  EXPECT_EQ(post(service.port(), "/detokenize", R"({"tokens":[256,257,111,34]})").body, R"({"prompt":"hello\""})");
  EXPECT_EQ(post(service.port(), "/detokenize", R"({"tokens":[]})").body, R"({"prompt":""})");
  EXPECT_EQ(json_of(post(service.port(), "/detokenize", R"({"tokens":[5,262]})").body)["error"],
            "Input validation error: token id 262 is outside the vocabulary of 262");
  for (const char* body : {"{}", R"({"tokens":5})", R"({"tokens":[-1]})", R"({"tokens":["a"]})", R"([1])"}) {
    EXPECT_EQ(post(service.port(), "/detokenize", body).status, 422) << body;
  }
}

TEST(Server, StartupAnswersWhenARequestWentThrough) {
  TestService service;
  service.engine.hold();
  RawClient client(service.port());
  client.get("/startup");
  service.engine.wait_until_held();
  service.engine.resume();
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "");
  EXPECT_TRUE(service.comes_to_rest());
  service.engine.fail_next_step("the device is gone");
  EXPECT_EQ(get(service.port(), "/startup").status, 503);
}

TEST(Server, RefusesToClassify) {
  TestService service;
  for (const char* path : {"/classify", "/classify_batch"}) {
    const RawResponse response = post(service.port(), path, R"({"inputs":"hello"})");
    EXPECT_EQ(response.status, 422);
    EXPECT_EQ(json_of(response.body)["error_type"], "validation");
  }
}

TEST(Server, CountsRequestsUnderLoraxNames) {
  TestService service;
  EXPECT_EQ(post(service.port(), "/generate", kShort).status, 200);
  EXPECT_EQ(post(service.port(), "/generate", R"({"inputs":""})").status, 422);
  ASSERT_TRUE(service.comes_to_rest());
  const RawResponse text = get(service.port(), "/metrics");
  EXPECT_TRUE(text.headers.at("content-type").starts_with("text/plain"));
  for (const char* line : {"\nlorax_request_count 2\n",
                           "\nlorax_request_success 1\n",
                           "\nlorax_request_failure{err=\"validation\"} 1\n",
                           "# TYPE lorax_request_duration histogram\n",
                           "lorax_request_duration_count 1\n",
                           "lorax_request_generated_tokens_sum 2\n",
                           "lorax_queue_length 0\n",
                           "lorax_batch_inference_count{method=\"decode\"} 1\n",
                           "lorax_batch_inference_success{method=\"prefill\"} 1\n",
                           "lorax_batch_inference_failure{method=\"decode\"} 0\n",
                           "lorax_batch_inference_duration_count{method=\"prefill\"} 1\n",
                           "lorax_batch_inference_duration_bucket{method=\"decode\",le=\"+Inf\"} 1\n",
                           "\nlorax_batch_next_size_bucket{le=\"1\"} 1\n",
                           "\nlorax_batch_next_size_sum 1\n",
                           "\nlorax_batch_concat{reason=\"chunking\"} 0\n",
                           "# TYPE lorax_request_skipped_tokens summary\n",
                           "\nlorax_request_skipped_tokens_sum 0\n",
                           "\nlorax_request_skipped_tokens_count 1\n",
                           "\nshoal_used_blocks 0\n",
                           "\nshoal_prefix_hits 0\n",
                           "\nshoal_adapters_loaded 3\n",
                           "\nshoal_adapter_bytes{tier=\"host\"} 512\n",
                           "\nshoal_adapter_load_seconds 0.25\n",
                           "\nshoal_adapter_hits{tier=\"device\"} 0\n",
                           "\nshoal_decode_steps 1\n",
                           "shoal_time_to_first_token_seconds_count 1\n",
                           "shoal_inter_token_seconds_count 1\n"}) {
    EXPECT_NE(("\n" + text.body).find(line), std::string::npos) << line;
  }
  for (const RawResponse& response :
       {get(service.port(), "/metrics", "accept: application/json\r\n"), get(service.port(), "/metrics?format=json")}) {
    const InputJson json = json_of(response.body);
    EXPECT_EQ(json["lorax_request_count"]["type"], "counter");
    EXPECT_EQ(json["lorax_request_count"]["data"][0]["value"], 2);
    EXPECT_EQ(json["lorax_request_duration"]["data"][1], json_of(R"({"key":"count","value":1})"));
    EXPECT_EQ(json["lorax_batch_inference_duration"]["data"][1]["key"], R"(count{method="prefill"})");
    EXPECT_EQ(json["lorax_request_skipped_tokens"]["type"], "summary");
  }
}

// --- shutting down ---

TEST(Server, NotReadyRefusesNewWorkAndEndsTheOld) {
  TestService service;
  service.engine.hold();
  RawClient running(service.port());
  running.post("/generate_stream", R"({"inputs":"hello","parameters":{"max_new_tokens":20}})");
  EXPECT_EQ(running.read_head().status, 200);
  service.engine.wait_until_held();
  EXPECT_EQ(get(service.port(), "/health").status, 200);
  service.server.set_ready(false);
  EXPECT_EQ(get(service.port(), "/health").status, 503);
  EXPECT_EQ(json_of(get(service.port(), "/").body)["error_type"], "healthcheck");
  EXPECT_EQ(get(service.port(), "/ping").status, 503);
  const RawResponse refused = post(service.port(), "/generate", kShort);
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(post(service.port(), "/generate_stream", kShort).status, 503);
  EXPECT_EQ(post(service.port(), "/v1/completions", R"({"model":"","prompt":"a"})").status, 503);
  service.engine.resume();
  int num_events = 0;
  while (running.read_event()) ++num_events;
  EXPECT_EQ(num_events, 20);
}

TEST(Server, AHungEngineMakesHealthRed) {
  ServerOptions options;
  options.progress_limit = milliseconds(30);
  TestService service({}, options);
  service.engine.hold();
  RawClient client(service.port());
  client.post("/generate", kShort);
  service.engine.wait_until_held();
  EXPECT_TRUE(eventually([&] { return get(service.port(), "/health").status == 503; }));
  EXPECT_EQ(get(service.port(), "/ping").status, 503);
  service.engine.resume();
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(get(service.port(), "/health").status, 200);
}

// --- clients that go away ---

// Leaves while the step is held; the engine must not run the request to its end.
void expect_cancelled(TestService& service, RawClient& client) {
  client.close();
  ASSERT_TRUE(eventually([&] { return service.server.num_connections() == 0; }));
  service.engine.resume();
  EXPECT_TRUE(service.comes_to_rest());
  EXPECT_EQ(service.scheduler.stats().cancelled, 1);
  EXPECT_LT(service.scheduler.stats().generated_tokens, 100);
}

TEST(Disconnect, CancelsAWholeAnswerInItsPrefill) {
  TestService service;
  service.engine.hold();
  RawClient client(service.port());
  client.post("/generate", kLong);
  service.engine.wait_until_held();
  expect_cancelled(service, client);
}

TEST(Disconnect, CancelsAWholeAnswerWhileItDecodes) {
  TestService service;
  service.engine.hold();
  RawClient client(service.port());
  client.post("/v1/completions", R"({"model":"","prompt":"hello","max_tokens":900})");
  service.engine.allow(20);
  ASSERT_TRUE(eventually([&] { return service.scheduler.stats().generated_tokens == 20; }));
  expect_cancelled(service, client);
}

TEST(Disconnect, CancelsAStream) {
  for (const bool rudely : {false, true}) {
    TestService service;
    service.engine.hold();
    RawClient client(service.port());
    client.post("/generate_stream", kLong);
    EXPECT_EQ(client.read_head().status, 200);
    service.engine.allow(5);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(client.read_event());
    if (rudely) client.reset();
    expect_cancelled(service, client);
  }
}

TEST(Disconnect, CancelsWhatStillWaitsInTheQueue) {
  TestService service({.max_sequences = 1});
  service.engine.hold();
  RawClient first(service.port());
  first.post("/generate", kShort);
  service.engine.wait_until_held();
  RawClient second(service.port());
  second.post("/generate", kLong);
  ASSERT_TRUE(eventually([&] { return service.scheduler.stats().queued == 1; }) ||
              eventually([&] { return service.server.num_connections() == 2; }));
  second.close();
  ASSERT_TRUE(eventually([&] { return service.server.num_connections() == 1; }));
  service.engine.resume();
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_TRUE(service.comes_to_rest());
  EXPECT_EQ(service.scheduler.stats().cancelled, 1);
}

TEST(Disconnect, CancelsWhatWaitsForItsAdapter) {
  TestService service;
  RawClient client(service.port());
  client.post("/generate", R"({"inputs":"hello","parameters":{"adapter_id":"slow-a","max_new_tokens":900}})");
  ASSERT_TRUE(eventually([&] { return service.engine.num_pins("slow-a") == 1; }));
  expect_cancelled(service, client);
}

TEST(Server, RefusesMoreThanItsPermitsWithARetryTime) {
  TestService service({.max_concurrent_requests = 2});
  service.engine.hold();
  RawClient first(service.port());
  RawClient second(service.port());
  first.post("/generate", kShort);
  second.post("/generate", kShort);
  service.engine.wait_until_held();
  std::optional<RawResponse> refused;
  ASSERT_TRUE(eventually([&] {
    const SchedulerStats stats = service.scheduler.stats();
    return stats.queued + stats.running == 2;
  }));
  refused = post(service.port(), "/generate", kShort);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(json_of(refused->body)["error_type"], "overloaded");
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  service.engine.resume();
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(second.read_response().status, 200);
}

TEST(Server, ANanAnswerFailsItsOwnRequestOnly) {
  TestService service;
  const RawResponse failed =
      post(service.port(), "/generate",
           R"({"inputs":"hello","parameters":{"max_new_tokens":50,"seed":999,"do_sample":true}})");
  EXPECT_EQ(failed.status, 424);
  EXPECT_EQ(json_of(failed.body)["error_type"], "generation");
  EXPECT_EQ(post(service.port(), "/generate", kShort).status, 200);
  EXPECT_TRUE(service.comes_to_rest());
}

}  // namespace
}  // namespace shoal
