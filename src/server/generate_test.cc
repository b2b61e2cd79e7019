#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/test_patience.h"
#include "server/json.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::events_of;
using test::eventually;
using test::get;
using test::json_of;
using test::json_of_event;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

std::vector<std::int64_t> ids_of(const InputJson& tokens) {
  std::vector<std::int64_t> ids;
  for (const auto& token : tokens) ids.push_back(token["id"].get<std::int64_t>());
  return ids;
}

std::string native(const std::string& parameters, const std::string& inputs = "hello") {
  return R"({"inputs":")" + inputs + R"(","parameters":)" + parameters + "}";
}

TEST(Generate, AnswersWithTheTokensOfTheEngine) {
  TestService service;
  const RawResponse response = post(service.port(), "/generate", native(R"({"max_new_tokens":9,"details":true})"));
  ASSERT_EQ(response.status, 200) << response.body;
  const InputJson json = json_of(response.body);
  EXPECT_EQ(ids_of(json["details"]["tokens"]), service.solo_ids("hello", 9));
  EXPECT_EQ(json["details"]["finish_reason"], "length");
  EXPECT_EQ(json["details"]["generated_tokens"], 9);
  EXPECT_TRUE(json["details"]["seed"].is_null());
  const auto& headers = response.headers;
  EXPECT_EQ(headers.at("content-type"), "application/json");
  EXPECT_EQ(headers.at("x-model-id"), "test/base");
  EXPECT_EQ(headers.at("x-generated-tokens"), "9");
  EXPECT_EQ(headers.at("x-compute-characters"), "5");
  EXPECT_EQ(std::stoi(headers.at("x-total-tokens")), std::stoi(headers.at("x-prompt-tokens")) + 9);
  EXPECT_FALSE(headers.contains("x-adapter-id"));
  for (const char* name :
       {"x-compute-type", "x-compute-time", "x-total-time", "x-validation-time", "x-queue-time", "x-inference-time",
        "x-time-per-token", "x-time-to-first-token", "x-time-per-output-token", "x-skipped-tokens"}) {
    EXPECT_TRUE(headers.contains(name)) << name;
  }
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Generate, LeavesDetailsOutByDefault) {
  TestService service;
  const InputJson json = json_of(post(service.port(), "/generate", native(R"({"max_new_tokens":2})")).body);
  EXPECT_EQ(json.size(), 1U);
  EXPECT_TRUE(json.contains("generated_text"));
}

TEST(Generate, RootAnswersAnArrayOfOneOrAStream) {
  TestService service;
  for (const char* path : {"/", "/invocations"}) {
    const std::string body = R"({"inputs":"hi","parameters":{"max_new_tokens":3,"details":true},"stream":)";
    const InputJson whole = json_of(post(service.port(), path, body + "false}").body);
    ASSERT_TRUE(whole.is_array());
    ASSERT_EQ(whole.size(), 1U);
    EXPECT_EQ(whole[0]["details"]["generated_tokens"], 3);
    const RawResponse stream = post(service.port(), path, body + "true}");
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(events_of(stream.body).size(), 3U);
  }
}

TEST(GenerateStream, EqualsTheWholeAnswer) {
  TestService service;
  const std::string body = native(R"({"max_new_tokens":40,"details":true,"adapter_id":"alpha"})");
  const InputJson whole = json_of(post(service.port(), "/generate", body).body);
  const RawResponse response = post(service.port(), "/generate_stream", body);
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(response.headers.at("x-accel-buffering"), "no");
  EXPECT_EQ(response.headers.at("x-adapter-id"), "alpha");
  const auto events = events_of(response.body);
  ASSERT_EQ(events.size(), 40U);
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const InputJson event = json_of_event(events[i]);
    ids.push_back(event["token"]["id"].get<std::int64_t>());
    EXPECT_EQ(event["generated_text"].is_null(), i + 1 < events.size());
    EXPECT_EQ(event["details"].is_null(), i + 1 < events.size());
  }
  EXPECT_EQ(ids, service.solo_ids("hello", 40, "alpha"));
  const InputJson last = json_of_event(events.back());
  EXPECT_EQ(last["generated_text"], whole["generated_text"]);
  EXPECT_EQ(last["details"]["generated_tokens"], 40);
  EXPECT_FALSE(last["details"].contains("tokens"));
}

TEST(GenerateStream, AWrongValueIsAnEventAndAWrongTypeAStatus) {
  TestService service;
  const RawResponse value = post(service.port(), "/generate_stream", native(R"({"temperature":-1})"));
  EXPECT_EQ(value.status, 200);
  const auto events = events_of(value.body);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(json_of_event(events[0])["error_type"], "validation");
  EXPECT_EQ(post(service.port(), "/generate_stream", native(R"({"temperature":"x"})")).status, 422);
}

TEST(Generate, PrependsThePromptWhenAsked) {
  TestService service;
  const InputJson full =
      json_of(post(service.port(), "/generate", native(R"({"max_new_tokens":4,"return_full_text":true})")).body);
  const InputJson plain = json_of(post(service.port(), "/generate", native(R"({"max_new_tokens":4})")).body);
  EXPECT_EQ(full["generated_text"], "hello" + plain["generated_text"].get<std::string>());
}

TEST(Generate, EchoesTheSeedOnlyWhenItSamples) {
  TestService service;
  const auto seed_of = [&](const std::string& parameters) {
    return json_of(post(service.port(), "/generate", native(parameters)).body)["details"]["seed"];
  };
  EXPECT_TRUE(seed_of(R"({"max_new_tokens":1,"details":true,"seed":5})").is_null());
  EXPECT_EQ(seed_of(R"({"max_new_tokens":1,"details":true,"seed":18446744073709551615,"do_sample":true})"),
            18446744073709551615U);
  EXPECT_TRUE(seed_of(R"({"max_new_tokens":1,"details":true,"temperature":0.7})").is_number_unsigned());
}

TEST(Generate, TellsLoadFailuresOfAdaptersInEachProtocol) {
  TestService service;
  const auto fail_soon = [&service] {
    return std::jthread([&service] {
      eventually([&] { return service.engine.num_pins("slow-x") > 0; });
      service.engine.fail_load("slow-x", {ErrorCode::kAdapterNotFound, "adapter 'slow-x' not found"});
    });
  };
  {
    const auto failing = fail_soon();
    const RawResponse response = post(service.port(), "/generate", native(R"({"adapter_id":"slow-x"})"));
    EXPECT_EQ(response.status, 424);
    EXPECT_EQ(json_of(response.body)["error_type"], "generation");
    EXPECT_EQ(json_of(response.body)["error_code"], "adapter_not_found");
  }
  {
    const auto failing = fail_soon();
    const RawResponse response = post(service.port(), "/generate_stream", native(R"({"adapter_id":"slow-x"})"));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(json_of_event(events_of(response.body).at(0))["error_code"], "adapter_not_found");
  }
  for (const char* stream : {"false", "true"}) {
    const auto failing = fail_soon();
    const RawResponse response = post(service.port(), "/v1/completions",
                                      std::string(R"({"model":"slow-x","prompt":"a","stream":)") + stream + "}");
    EXPECT_EQ(response.status, 404) << stream;
    EXPECT_EQ(json_of(response.body)["error"]["code"], "model_not_found");
  }
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(Completions, AdapterIdNamesTheAdapterWhereModelIsTheBaseModel) {
  TestService service;
  const auto ask = [&service](const std::string& fields) {
    return post(service.port(), "/v1/completions",
                R"({"prompt":"hello","max_tokens":9,"temperature":0,)" + fields + "}");
  };
  const InputJson by_model = json_of(ask(R"("model":"alpha")").body);
  ASSERT_NE(by_model["choices"], json_of(ask(R"("model":"")").body)["choices"]);
  for (const char* fields : {R"("model":"","adapter_id":"alpha")", R"("model":"test/base","adapter_id":"alpha")",
                             R"("model":"alpha","adapter_id":"alpha")", R"("model":"alpha","adapter_id":"")",
                             R"("model":"alpha","adapter_id":null)"}) {
    const InputJson answer = json_of(ask(fields).body);
    EXPECT_EQ(answer["choices"], by_model["choices"]) << fields;
    EXPECT_EQ(answer["model"], "alpha") << fields;
  }
  const RawResponse refused = ask(R"("model":"alpha","adapter_id":"org/beta")");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json_of(refused.body)["error"]["param"], "adapter_id");
  EXPECT_EQ(json_of(refused.body)["error"]["message"],
            "`adapter_id` and `model` must not name two adapters, given: 'org/beta' and 'alpha'");
  EXPECT_EQ(post(service.port(), "/v1/chat/completions",
                 R"({"model":"alpha","adapter_id":"b","messages":[{"role":"user","content":"x"}]})")
                .status,
            400);
}

TEST(Completions, SamplesAtASpelledTemperatureAndWhereAnswersAreCounted) {
  TestService service;
  const auto text_of = [&service](const std::string& fields) {
    return json_of(post(service.port(), "/v1/completions",
                        R"({"model":"","prompt":"hello","max_tokens":20,"seed":7)" + fields + "}")
                       .body)["choices"][0]["text"];
  };
  const auto sampled =
      json_of(post(service.port(), "/generate", native(R"({"max_new_tokens":20,"seed":7,"do_sample":true})")).body);
  const auto greedy = json_of(post(service.port(), "/generate", native(R"({"max_new_tokens":20})")).body);
  ASSERT_NE(sampled["generated_text"], greedy["generated_text"]);
  for (const char* fields : {R"(,"temperature":1)", R"(,"n":1)", R"(,"n":1,"temperature":1.0,"best_of":null)"}) {
    EXPECT_EQ(text_of(fields), sampled["generated_text"]) << fields;
  }
  for (const char* fields :
       {"", R"(,"temperature":0)", R"(,"temperature":null,"n":null)", R"(,"n":1,"temperature":0)"}) {
    EXPECT_EQ(text_of(fields), greedy["generated_text"]) << fields;
  }
}

TEST(Completions, CutsTheStopTextThatNativeRoutesKeep) {
  TestService service;
  const std::string body = R"("max_new_tokens":200})";
  const auto whole =
      json_of(post(service.port(), "/generate", native("{" + body)).body)["generated_text"].get<std::string>();
  // Three plain letters somewhere in the answer.
  std::size_t at = 20;
  const auto is_plain = [&](std::size_t i) { return std::isalnum(static_cast<unsigned char>(whole[i])) != 0; };
  while (at + 2 < whole.size() && !(is_plain(at) && is_plain(at + 1))) ++at;
  ASSERT_LT(at + 2, whole.size());
  const std::string stop = whole.substr(at, 2);
  const std::string before = whole.substr(0, whole.find(stop));

  const auto kept = json_of(post(service.port(), "/generate", native(R"({"stop":[")" + stop + R"("],)" + body)).body);
  EXPECT_EQ(kept["generated_text"], before + stop);
  const std::string request =
      R"({"model":"test/base","prompt":"hello","max_tokens":200,"stop":")" + stop + R"(","stream":)";
  const InputJson cut = json_of(post(service.port(), "/v1/completions", request + "false}").body);
  EXPECT_EQ(cut["choices"][0]["text"], before);
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");

  std::string streamed;
  const auto events = events_of(post(service.port(), "/v1/completions", request + "true}").body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events.back(), "data: [DONE]");
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const InputJson event = json_of_event(events[i]);
    EXPECT_EQ(event["id"], json_of_event(events[0])["id"]);
    streamed += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(), i + 2 < events.size());
  }
  EXPECT_EQ(streamed, before);
  EXPECT_EQ(json_of_event(events[events.size() - 2])["usage"], cut["usage"]);
}

TEST(Completions, StopsAtATokenIdAndCutsItUnlessAskedToKeepIt) {
  TestService service;
  const InputJson tokens = json_of(
      post(service.port(), "/generate", native(R"({"max_new_tokens":20,"details":true})")).body)["details"]["tokens"];
  const std::int64_t id = tokens[6]["id"].get<std::int64_t>();
  const auto first =
      std::find_if(tokens.begin(), tokens.end(), [&](const InputJson& token) { return token["id"] == id; });
  const auto num_before = first - tokens.begin();
  const auto complete = [&](const std::string& rest) {
    return json_of(post(service.port(), "/v1/completions", R"({"model":"","prompt":"hello",)" + rest + "}").body);
  };
  const std::string stop = R"("max_tokens":20,"stop_token_ids":[9999,)";
  const InputJson refused = complete(stop + "1]");
  EXPECT_EQ(refused["error"]["param"], "stop_token_ids");
  const std::string stops = R"("max_tokens":20,"ignore_eos_token":true,"stop_token_ids":[)" + std::to_string(id) + "]";
  const InputJson cut = complete(stops);
  EXPECT_EQ(cut["usage"]["completion_tokens"], num_before + 1);
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  ASSERT_GT(num_before, 0);
  const std::string ignore = R"("ignore_eos_token":true,"max_tokens":)";
  EXPECT_EQ(cut["choices"][0]["text"], complete(ignore + std::to_string(num_before))["choices"][0]["text"]);
  EXPECT_EQ(complete(stops + R"(,"include_stop_str_in_output":true)")["choices"][0]["text"],
            complete(ignore + std::to_string(num_before + 1))["choices"][0]["text"]);
}

// The beginning of a stop string is held back in a stream; when the answer ends there it belongs to the text after all.
TEST(Completions, AStreamThatEndsInsideAStopStringLosesNothing) {
  TestService service;
  const auto body_of = [](int max_tokens, const std::string& rest) {
    return R"({"model":"","prompt":"hello","max_tokens":)" + std::to_string(max_tokens) + rest + "}";
  };
  int max_tokens = 100;
  std::string whole;
  const auto ends_plainly = [&] { return !whole.empty() && std::isalnum(static_cast<unsigned char>(whole.back())); };
  while (!ends_plainly() && max_tokens < 200) {
    ++max_tokens;
    const RawResponse response = post(service.port(), "/v1/completions", body_of(max_tokens, ""));
    whole = json_of(response.body)["choices"][0]["text"].get<std::string>();
  }
  ASSERT_TRUE(ends_plainly());
  const std::string stop = std::string(",\"stop\":\"") + whole.back() + "never\",\"stream\":true";
  std::string streamed;
  for (const std::string& event : events_of(post(service.port(), "/v1/completions", body_of(max_tokens, stop)).body)) {
    if (event != "data: [DONE]") streamed += json_of_event(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, whole);
}

TEST(Completions, TakesTokenIdsAndEchoes) {
  TestService service;
  const auto text_of = [&](const std::string& fields) {
    return json_of(post(service.port(), "/v1/completions", R"({"model":"","max_tokens":5,)" + fields + "}")
                       .body)["choices"][0]["text"]
        .get<std::string>();
  };
  const auto ids = service.tokenizer().encode("hello", SpecialTokens::kAdd).value();
  std::string list;
  for (const std::int64_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  EXPECT_EQ(text_of("\"prompt\":[" + list + "]"), text_of("\"prompt\":\"hello\""));
  EXPECT_EQ(text_of(R"("prompt":"hello","echo":true)"), "hello" + text_of(R"("prompt":"hello")"));
}

TEST(Chat, StreamsRoleTextReasonAndUsage) {
  TestService service;
  const std::string body =
      R"({"model":"alpha","messages":[{"role":"user","content":"hi"}],"temperature":0,"max_tokens":30,"stream":)";
  const InputJson whole = json_of(post(service.port(), "/v1/chat/completions", body + "false}").body);
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["model"], "alpha");
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("chatcmpl-"));
  const auto events = events_of(
      post(service.port(), "/v1/chat/completions", body + R"(true,"stream_options":{"include_usage":true}})").body);
  ASSERT_GE(events.size(), 4U);
  EXPECT_EQ(json_of_event(events[0])["choices"][0]["delta"]["role"], "assistant");
  std::string streamed;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    streamed += json_of_event(events[i])["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(json_of_event(events[events.size() - 3])["choices"][0]["finish_reason"], "length");
  const InputJson usage = json_of_event(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"], whole["usage"]);
  EXPECT_EQ(events.back(), "data: [DONE]");
}

TEST(Chat, ATurnMarkerInAMessageStaysText) {
  TestService service;
  const auto prompt_tokens = [&](const std::string& content) {
    const std::string body = R"({"model":"","temperature":0,"max_tokens":1,"messages":[{"role":"user","content":")";
    return json_of(
               post(service.port(), "/v1/chat/completions", body + content + "\"}]}").body)["usage"]["prompt_tokens"]
        .get<int>();
  };
  // As a control token it would be one id; as text it is its eight characters.
  EXPECT_EQ(prompt_tokens("a<|turn|>"), prompt_tokens("a") + 8);
}

TEST(Chat, ATemplateThatRefusesIs400WithItsWords) {
  TestService service;
  const RawResponse response =
      post(service.port(), "/v1/chat/completions", R"({"model":"","messages":[{"role":"bad","content":"x"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(json_of(response.body)["error"]["message"].get<std::string>().find("no such role"), std::string::npos);
  EXPECT_EQ(post(service.port(), "/v1/chat/completions", R"({"model":"","messages":[]})").status, 400);
}

}  // namespace
}  // namespace shoal
