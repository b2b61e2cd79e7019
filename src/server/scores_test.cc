// Scores on the wire, in the forms of all routes. The fake engine scores a token by the one before it.
#include <gtest/gtest.h>

#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::json_events_of;
using test::json_of;
using test::post;
using test::TestService;

InputJson complete(TestService& service, const std::string& fields) {
  const auto response = post(service.port(), "/v1/completions", R"({"model":"","prompt":"hello",)" + fields + "}");
  EXPECT_EQ(response.status, 200) << response.body;
  return json_of(response.body)["choices"][0];
}

// Prompt, then answer.
std::vector<std::int64_t> all_ids(TestService& service, std::int64_t max_tokens) {
  auto ids = service.tokenizer().encode("hello", SpecialTokens::kAdd).value();
  const auto answer = service.solo_ids("hello", max_tokens);
  ids.insert(ids.end(), answer.begin(), answer.end());
  return ids;
}

TEST(CompletionLogprobs, StandBesideEachToken) {
  TestService service;
  const InputJson plain = complete(service, R"("max_tokens":6)");
  EXPECT_TRUE(plain["logprobs"].is_null());
  const InputJson choice = complete(service, R"("max_tokens":6,"logprobs":2)");
  EXPECT_EQ(choice["text"], plain["text"]);
  const InputJson& logprobs = choice["logprobs"];
  const auto ids = all_ids(service, 6);
  ASSERT_EQ(logprobs["tokens"].size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::size_t at = ids.size() - 6 + i;
    EXPECT_EQ(logprobs["token_logprobs"][i], FakeEngine::score_of(ids[at - 1], ids[at], 2).logprob);
    EXPECT_GE(logprobs["top_logprobs"][i].size(), 2U);
    const std::string token = logprobs["tokens"][i];
    EXPECT_EQ(logprobs["top_logprobs"][i][token], logprobs["token_logprobs"][i]);
  }
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(complete(service, R"("max_tokens":6,"logprobs":0)")["logprobs"]["token_logprobs"],
            logprobs["token_logprobs"]);
}

TEST(CompletionLogprobs, EchoScoresThePromptAndItsFirstTokenIsNull) {
  TestService service;
  const auto ids = all_ids(service, 3);
  const InputJson choice = complete(service, R"("max_tokens":3,"logprobs":1,"echo":true)");
  const InputJson& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["token_logprobs"].size(), ids.size());
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["token_logprobs"][i], FakeEngine::score_of(ids[i - 1], ids[i], 1).logprob) << i;
  }
  EXPECT_EQ(logprobs["tokens"][0], "he");
  EXPECT_EQ(logprobs["text_offset"][1], 2);

  const auto response = post(service.port(), "/v1/completions",
                             R"({"model":"","prompt":"hello","max_tokens":3,"logprobs":1,"echo":true,"stream":true})");
  InputJson tokens = InputJson::array();
  InputJson values = InputJson::array();
  InputJson offsets = InputJson::array();
  std::string text;
  for (const InputJson& event : json_events_of(response.body)) {
    const InputJson& chunk = event["choices"][0];
    text += chunk["text"].get<std::string>();
    if (chunk["logprobs"].is_null()) continue;
    for (const auto& each : chunk["logprobs"]["tokens"]) tokens.push_back(each);
    for (const auto& each : chunk["logprobs"]["token_logprobs"]) values.push_back(each);
    for (const auto& each : chunk["logprobs"]["text_offset"]) offsets.push_back(each);
  }
  EXPECT_EQ(text, choice["text"]);
  EXPECT_EQ(tokens, logprobs["tokens"]);
  EXPECT_EQ(values, logprobs["token_logprobs"]);
  EXPECT_EQ(offsets, logprobs["text_offset"]);
}

TEST(CompletionLogprobs, ThePromptAloneIsScoredWithMaxTokens0) {
  TestService service;
  const auto response = post(service.port(), "/v1/completions",
                             R"({"model":"","prompt":"hello","max_tokens":0,"logprobs":1,"echo":true})");
  const InputJson json = json_of(response.body);
  EXPECT_EQ(json["choices"][0]["text"], "hello");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), all_ids(service, 0).size());
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

TEST(CompletionLogprobs, HalvesOfCharactersAreToldByTheirBytes) {
  TestService service;
  const auto response = post(service.port(), "/v1/completions",
                             "{\"model\":\"\",\"prompt\":\"\u00e4b\",\"max_tokens\":1,\"logprobs\":1,\"echo\":true}");
  const InputJson logprobs = json_of(response.body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "bytes:\\xc3");
  EXPECT_EQ(logprobs["tokens"][1], "bytes:\\xa4");
  EXPECT_EQ(logprobs["tokens"][2], "b");
  EXPECT_EQ(logprobs["text_offset"][2], 1);
}

TEST(ChatLogprobs, WholeAndStreamedAreEqual) {
  TestService service;
  const std::string body = R"({"model":"","messages":[{"role":"user","content":"hi"}],"temperature":0,"max_tokens":12,
                               "logprobs":true,"top_logprobs":3,"stream":)";
  const InputJson whole = json_of(post(service.port(), "/v1/chat/completions", body + "false}").body)["choices"][0];
  const InputJson& content = whole["logprobs"]["content"];
  ASSERT_EQ(content.size(), 12U);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 3U);
  EXPECT_TRUE(content[0]["bytes"].is_array());
  InputJson streamed = InputJson::array();
  std::string text;
  for (const InputJson& event : json_events_of(post(service.port(), "/v1/chat/completions", body + "true}").body)) {
    const InputJson& chunk = event["choices"][0];
    text += chunk["delta"].value("content", "");
    if (!chunk.contains("logprobs") || chunk["logprobs"].is_null()) continue;
    for (const auto& each : chunk["logprobs"]["content"]) streamed.push_back(each);
  }
  EXPECT_EQ(streamed, content);
  EXPECT_EQ(text, whole["message"]["content"]);
}

TEST(PromptLogprobs, AreByIdWithRanks) {
  TestService service;
  const auto ids = all_ids(service, 0);
  const InputJson prompt = complete(service, R"("max_tokens":1,"prompt_logprobs":2)")["prompt_logprobs"];
  ASSERT_EQ(prompt.size(), ids.size());
  EXPECT_TRUE(prompt[0].is_null());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const InputJson& own = prompt[i][std::to_string(ids[i])];
    EXPECT_EQ(own["logprob"], FakeEngine::score_of(ids[i - 1], ids[i], 2).logprob);
    EXPECT_EQ(own["rank"], 3);
    EXPECT_EQ(prompt[i].size(), 3U);
  }
  const InputJson chat = json_of(post(service.port(), "/v1/chat/completions",
                                      R"({"model":"","messages":[{"role":"user","content":"hi"}],"max_tokens":1,
                                          "prompt_logprobs":0})")
                                     .body);
  EXPECT_GT(chat["prompt_logprobs"].size(), 3U);
}

TEST(NativeScores, PrefillAlternativesAndTopTokens) {
  TestService service;
  const auto ids = all_ids(service, 2);
  const std::string body = R"({"inputs":"hello","parameters":{"max_new_tokens":2,"details":true,
                               "return_k_alternatives":2,"top_n_tokens":3)";
  const auto whole = post(service.port(), "/generate", body + R"(,"decoder_input_details":true}})");
  const InputJson details = json_of(whole.body)["details"];
  ASSERT_EQ(details["prefill"].size(), ids.size() - 2);
  EXPECT_TRUE(details["prefill"][0]["logprob"].is_null());
  EXPECT_EQ(details["prefill"][0]["text"], "he");
  EXPECT_EQ(details["prefill"][1]["id"], ids[1]);
  EXPECT_EQ(details["prefill"][1]["logprob"], FakeEngine::score_of(ids[0], ids[1], 0).logprob);
  EXPECT_EQ(details["tokens"][0]["alternative_tokens"].size(), 2U);
  EXPECT_EQ(details["top_tokens"][1].size(), 3U);
  EXPECT_TRUE(details["top_tokens"][1][0].contains("special"));
  const auto events = json_events_of(post(service.port(), "/generate_stream", body + "}}").body);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["token"]["alternative_tokens"], details["tokens"][0]["alternative_tokens"]);
  EXPECT_EQ(events[1]["top_tokens"], details["top_tokens"][1]);
  const auto refused =
      json_events_of(post(service.port(), "/generate_stream", body + R"(,"decoder_input_details":true}})").body);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0]["error_type"], "validation");
  EXPECT_TRUE(service.comes_to_rest());
}

}  // namespace
}  // namespace shoal
