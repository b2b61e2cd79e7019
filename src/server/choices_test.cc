// Several answers of one call: each is the answer that its seed gives alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "server/generation_group.h"
#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::eventually;
using test::json_events_of;
using test::json_of;
using test::post;
using test::TestService;

InputJson complete(TestService& service, const std::string& fields, int status = 200) {
  const auto response = post(service.port(), "/v1/completions", R"({"model":"","max_tokens":6,)" + fields + "}");
  EXPECT_EQ(response.status, status) << response.body;
  return json_of(response.body);
}

std::string text_of_seed(TestService& service, const std::string& prompt, int seed) {
  return complete(
      service, "\"prompt\":" + prompt + R"(,"temperature":1.5,"seed":)" + std::to_string(seed))["choices"][0]["text"];
}

TEST(Choices, EachHasItsOwnSeedAndUsageCountsThePromptOnce) {
  for (const bool prefix_caching : {false, true}) {
    TestService service({.prefix_caching = prefix_caching});
    const InputJson one = complete(service, R"("prompt":"hello","temperature":1.5,"seed":7)");
    const InputJson json = complete(service, R"("prompt":"hello","temperature":1.5,"seed":7,"n":4)");
    ASSERT_EQ(json["choices"].size(), 4U);
    for (int i = 0; i < 4; ++i) {
      const InputJson& choice = json["choices"][static_cast<std::size_t>(i)];
      EXPECT_EQ(choice["index"], i);
      EXPECT_EQ(choice["text"], text_of_seed(service, "\"hello\"", 7 + i));
    }
    EXPECT_EQ(json["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    EXPECT_EQ(json["usage"]["completion_tokens"], 4 * one["usage"]["completion_tokens"].get<int>());
    EXPECT_TRUE(service.comes_to_rest());
  }
}

TEST(Choices, CopiesFindThePromptInThePrefixCache) {
  TestService service({.prefix_caching = true});
  const std::string prompt(64, 'x');
  (void)complete(service, "\"prompt\":\"" + prompt + R"(","n":5,"seed":1)");
  EXPECT_EQ(service.scheduler.stats().prefix.hits, 4);
}

// Copies that wait for the first one are asked for once the server takes nothing new.
TEST(Choices, AreFinishedByAServerThatShutsDown) {
  TestService service({.prefix_caching = true});
  service.engine.hold();
  test::RawClient client(service.port());
  client.post("/v1/completions", R"({"model":"","prompt":"hello","max_tokens":9,"temperature":1.5,"seed":7,"n":3})");
  service.engine.wait_until_held();
  service.server.set_ready(false);
  EXPECT_FALSE(service.scheduler.drain(std::chrono::milliseconds(1)));
  service.engine.resume();
  const test::RawResponse answer = client.read_response();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json_of(answer.body)["choices"].size(), 3U);
  EXPECT_TRUE(service.scheduler.drain(std::chrono::seconds(30)));
}

TEST(Choices, OfSeveralPromptsFollowOneAnother) {
  TestService service;
  const InputJson json =
      complete(service, R"("prompt":["hello",[65,66,67]],"temperature":1.5,"seed":3,"n":2,"echo":true)");
  ASSERT_EQ(json["choices"].size(), 4U);
  for (int i = 0; i < 4; ++i) {
    const InputJson& choice = json["choices"][static_cast<std::size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    const std::string echoed = i < 2 ? "hello" : "ABC";
    EXPECT_EQ(choice["text"], echoed + text_of_seed(service, i < 2 ? "\"hello\"" : "\"ABC\"", 3 + i % 2));
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3 + 3);
  EXPECT_EQ(complete(service, R"("prompt":["a",""])", 400)["error"]["param"], "prompt");
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Choices, StreamsTellThemApartByIndex) {
  TestService service;
  const std::string body = R"({"model":"","prompt":["hello","ABC"],"max_tokens":9,"temperature":1.5,"seed":3,"n":3,
                               "logprobs":1,"echo":true,"stream":)";
  const InputJson whole = json_of(post(service.port(), "/v1/completions", body + "false}").body);
  const auto events = json_events_of(
      post(service.port(), "/v1/completions", body + R"(true,"stream_options":{"include_usage":true}})").body);
  std::vector<std::string> texts(6);
  std::vector<std::string> reasons(6);
  std::vector<InputJson> logprobs(6, InputJson::array());
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const InputJson& choice = events[i]["choices"].at(0);
    const auto index = choice["index"].get<std::size_t>();
    texts.at(index) += choice["text"].get<std::string>();
    EXPECT_TRUE(reasons[index].empty()) << "a chunk after the last one";
    if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
    if (choice["logprobs"].is_null()) continue;
    for (const auto& each : choice["logprobs"]["token_logprobs"]) logprobs[index].push_back(each);
  }
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]);
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
    EXPECT_EQ(logprobs[i], whole["choices"][i]["logprobs"]["token_logprobs"]);
  }
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
  EXPECT_TRUE(events.back()["choices"].empty());
}

TEST(Choices, ChatHasThemToo) {
  TestService service;
  const std::string body = R"({"model":"","messages":[{"role":"user","content":"hi"}],"max_tokens":6,"seed":4)";
  const InputJson json = json_of(post(service.port(), "/v1/chat/completions", body + R"(,"n":3})").body);
  ASSERT_EQ(json["choices"].size(), 3U);
  EXPECT_EQ(json["choices"][2]["index"], 2);
  EXPECT_EQ(json["choices"][0]["message"],
            json_of(post(service.port(), "/v1/chat/completions", body + "}").body)["choices"][0]["message"]);
  std::vector<int> roles(3, 0);
  for (const InputJson& event :
       json_events_of(post(service.port(), "/v1/chat/completions", body + R"(,"n":3,"stream":true})").body)) {
    const InputJson& choice = event["choices"][0];
    roles.at(choice["index"].get<std::size_t>()) += choice["delta"].contains("role") ? 1 : 0;
  }
  EXPECT_EQ(roles, (std::vector<int>{1, 1, 1}));
}

TEST(BestOf, GivesTheLikeliestAndCountsAll) {
  TestService service;
  const InputJson json = complete(service, R"("prompt":"hello","seed":7,"n":2,"best_of":5)");
  EXPECT_EQ(json["choices"].size(), 2U);
  EXPECT_EQ(json["usage"]["completion_tokens"], 30);
  const auto refused =
      post(service.port(), "/v1/completions", R"({"model":"","prompt":"hello","n":2,"best_of":5,"stream":true})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json_of(refused.body)["error"]["param"], "best_of");
}

TEST(BestOf, OrdersByMeanNotBySum) {
  std::vector<MeanLogprob> means(4);
  for (int i = 0; i < 10; ++i) means[0].add(-1.0F);
  means[1].add(-2.0F);
  for (int i = 0; i < 30; ++i) means[2].add(-0.5F);
  for (int i = 0; i < 2; ++i) means[3].add(-1.0F);
  EXPECT_EQ(by_mean_logprob(means, 0, 4), (std::vector<std::size_t>{2, 0, 3, 1}));
  EXPECT_EQ(by_mean_logprob(means, 1, 4), (std::vector<std::size_t>{2, 3, 1}));
}

TEST(BestOf, NativeAnswersTellTheOthers) {
  TestService service;
  const auto generate = [&](const std::string& parameters) {
    return post(service.port(), "/generate",
                R"({"inputs":"hello","parameters":{"max_new_tokens":5,"details":true,)" + parameters + "}}");
  };
  const InputJson json = json_of(generate(R"("best_of":2,"do_sample":true,"decoder_input_details":true)").body);
  const InputJson& details = json["details"];
  ASSERT_EQ(details["best_of_sequences"].size(), 1U);
  const InputJson& other = details["best_of_sequences"][0];
  EXPECT_EQ(other["generated_tokens"], 5);
  EXPECT_EQ(other["finish_reason"], "length");
  EXPECT_EQ(other["prefill"], details["prefill"]);
  const auto of_seed = [&](const InputJson& answer) {
    return json_of(generate(R"("do_sample":true,"seed":)" + answer["seed"].dump()).body);
  };
  EXPECT_EQ(of_seed(details)["generated_text"], json["generated_text"]);
  EXPECT_EQ(of_seed(other)["generated_text"], other["generated_text"]);
  EXPECT_EQ(json_of(generate(R"("best_of":1)").body)["details"].contains("best_of_sequences"), false);
  const auto stream = json_events_of(
      post(service.port(), "/generate_stream", R"({"inputs":"hello","parameters":{"best_of":2,"do_sample":true}})")
          .body);
  ASSERT_EQ(stream.size(), 1U);
  EXPECT_EQ(stream[0]["error_type"], "validation");
}

TEST(Choices, TooManyInOneRequestAreRefusedBeforeAnyIsMade) {
  TestService service;
  std::string prompts = "\"a\"";
  for (int i = 0; i < 1024; ++i) prompts += ",\"a\"";
  EXPECT_EQ(complete(service, "\"prompt\":[" + prompts + "]", 400)["error"]["param"], "prompt");
  prompts.resize(9 * 4 - 1);
  const InputJson error = complete(service, "\"n\":128,\"prompt\":[" + prompts + "]", 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("9 prompts, 128 answers each; at most 1024"), std::string::npos);
}

TEST(Choices, OneThatFailsEndsAll) {
  TestService service;
  const std::string nan_seed = std::to_string(FakeEngine::kNanSeed - 2);
  const auto response =
      post(service.port(), "/v1/completions",
           R"({"model":"","prompt":"hello","max_tokens":200,"temperature":1.5,"n":4,"seed":)" + nan_seed + "}");
  EXPECT_EQ(response.status, 500);
  EXPECT_TRUE(service.comes_to_rest());
  const auto overload =
      post(service.port(), "/v1/completions", R"({"model":"","prompt":"hello","max_tokens":200,"n":100})");
  EXPECT_EQ(overload.status, 429);
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Choices, AClientThatLeavesCancelsAll) {
  TestService service;
  service.engine.hold();
  {
    test::RawClient client(service.port());
    const std::string body = R"({"model":"","prompt":"hello","max_tokens":500,"n":5,"stream":true})";
    client.post("/v1/completions", body);
    EXPECT_TRUE(eventually([&] { return service.scheduler.stats().queued + service.scheduler.stats().running >= 5; }));
  }
  ASSERT_TRUE(eventually([&] { return service.server.num_connections() == 0; }));
  service.engine.resume();
  EXPECT_TRUE(service.comes_to_rest());
  EXPECT_EQ(service.scheduler.stats().cancelled, 5);
}

}  // namespace
}  // namespace shoal
