#include "server/responses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/errors.h"

namespace shoal {
namespace {

TokenEvent token(std::int64_t id, const std::string& text, float logprob, bool special = false) {
  return {.id = id, .text = text, .delta = text, .logprob = logprob, .special = special};
}

FinishEvent finish(FinishReason reason, const std::string& text, std::int64_t prompt, std::int64_t generated) {
  return {.reason = reason,
          .generated_text = text,
          .tail = "",
          .prompt_tokens = prompt,
          .generated_tokens = generated,
          .cached_tokens = std::nullopt,
          .timings = {}};
}

const OpenAiHead kHead = {.id = "chatcmpl-1", .created = 1700000000, .model = "base"};

// Extra keys, and only where there is a prefix cache.
TEST(Responses, SayHowManyPromptTokensWereCached) {
  const std::vector<TokenEvent> tokens = {token(19, "4", -0.25F)};
  FinishEvent cached = finish(FinishReason::kLength, "4", 40, 1);
  cached.cached_tokens = 32;
  EXPECT_NE(to_text(native_response("4", cached, std::nullopt, &tokens)).find(R"("cached_tokens":32)"),
            std::string::npos);
  EXPECT_NE(to_text(native_stream_last(
                        tokens[0], {.generated_text = "4", .finish = cached, .seed = std::nullopt, .details = true}))
                .find(R"("cached_tokens":32)"),
            std::string::npos);
  EXPECT_EQ(
      to_text(openai_usage(cached)),
      R"({"prompt_tokens":40,"total_tokens":41,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32}})");
}

TEST(NativeResponse, HasTheKeysOfLoraxInTheirOrder) {
  const std::vector<TokenEvent> tokens = {token(19, "4", -0.25F)};
  EXPECT_EQ(to_text(native_response("4", finish(FinishReason::kLength, "4", 2, 1), std::nullopt, &tokens)),
            R"({"generated_text":"4","details":{"finish_reason":"length","prompt_tokens":2,"generated_tokens":1,)"
            R"("skipped_tokens":0,"seed":null,"prefill":[],)"
            R"("tokens":[{"id":19,"text":"4","logprob":-0.25,"special":false,"skipped":false}]}})");
}

TEST(NativeResponse, OmitsDetailsUnlessAsked) {
  EXPECT_EQ(to_text(native_response("4", finish(FinishReason::kLength, "4", 2, 1), 7, nullptr)),
            R"({"generated_text":"4"})");
}

TEST(NativeStream, EventsAreFramedAsInTheSpec) {
  EXPECT_EQ(to_event(native_stream_token(token(19, "4", -0.25F))),
            "data: {\"token\":{\"id\":19,\"text\":\"4\",\"logprob\":-0.25,\"special\":false,\"skipped\":false},"
            "\"generated_text\":null,\"details\":null}\n\n");
  const FinishEvent last = finish(FinishReason::kEndOfSequence, "4", 2, 2);
  EXPECT_EQ(to_event(native_stream_last(
                token(2, "</s>", -0.5F, true),
                {.generated_text = last.generated_text, .finish = last, .seed = std::nullopt, .details = true})),
            "data: {\"token\":{\"id\":2,\"text\":\"</s>\",\"logprob\":-0.5,\"special\":true,\"skipped\":false},"
            "\"generated_text\":\"4\",\"details\":{\"finish_reason\":\"eos_token\",\"prompt_tokens\":2,"
            "\"generated_tokens\":2,\"seed\":null}}\n\n");
  const std::string without = to_text(native_stream_last(
      token(2, "x", -0.5F), {.generated_text = last.generated_text, .finish = last, .seed = 5, .details = false}));
  EXPECT_TRUE(without.ends_with(R"("generated_text":"4","details":null})")) << without;
}

TEST(NativeStream, AnEventIsOneLineWhateverTheTextHolds) {
  const std::string event = to_event(native_stream_token(token(1, "a\n\r\n\n\"\\\t\x01", -1.0F)));
  EXPECT_EQ(event.find('\n'), event.size() - 2);
  EXPECT_EQ(event.find('\r'), std::string::npos);
}

TEST(Json, FloatsAreShortestFloat32AndNeverNan) {
  const auto text_of = [](float value) { return to_text(OutputJson(value)); };
  EXPECT_EQ(text_of(-0.1F), "-0.1");
  EXPECT_EQ(text_of(-3.5F), "-3.5");
  EXPECT_EQ(std::stof(text_of(-1.2345678e-7F)), -1.2345678e-7F);
  EXPECT_EQ(text_of(std::nanf("")), "null");
  EXPECT_EQ(text_of(-std::numeric_limits<float>::infinity()), "null");
}

TEST(Json, SeedsKeepAll64Bits) {
  EXPECT_EQ(to_text(OutputJson(std::uint64_t{18446744073709551615U})), "18446744073709551615");
}

TEST(Json, BytesThatAreNoUtf8AreReplaced) { EXPECT_EQ(to_text(OutputJson("a\xff")), "\"a\xef\xbf\xbd\""); }

TEST(Json, DepthIsBoundedAndFaultsAreTold) {
  const auto nested = [](int depth) { return std::string(static_cast<std::size_t>(depth), '['); };
  const auto closed = [&](int depth) { return nested(depth) + std::string(static_cast<std::size_t>(depth), ']'); };
  EXPECT_TRUE(std::holds_alternative<InputJson>(parse_json(closed(64))));
  EXPECT_TRUE(std::holds_alternative<JsonFault>(parse_json(closed(65))));
  EXPECT_TRUE(std::holds_alternative<JsonFault>(parse_json(nested(1'000'000))));
  EXPECT_TRUE(std::holds_alternative<InputJson>(parse_json("\"" + nested(100) + "\\\"[\"")));
  for (const char* bad : {"", "{", "{\"a\":}", "nul", "{\"a\":1}x", "\"\xff\"", "\"\\ud800\"", "1e999", "NaN"}) {
    EXPECT_TRUE(std::holds_alternative<JsonFault>(parse_json(bad))) << bad;
  }
}

TEST(OpenAi, CompletionHasRealIdAndReason) {
  EXPECT_EQ(to_text(completion_response(kHead, "hi", finish(FinishReason::kStopSequence, "hi", 3, 2))),
            R"({"id":"chatcmpl-1","object":"text_completion","created":1700000000,"model":"base",)"
            R"("choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}})");
}

TEST(OpenAi, ChatAnswerAndChunks) {
  EXPECT_EQ(
      to_text(chat_response(kHead, "0.1.0-native", finish(FinishReason::kLength, "hi", 3, 2))),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"base",)"
      R"("choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,)"
      R"("finish_reason":"length"}],)"
      R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2},"system_fingerprint":"0.1.0-native"})");
  EXPECT_EQ(to_text(chat_chunk(kHead, OutputJson::object(), "stop")),
            R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"base",)"
            R"("choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})");
  EXPECT_EQ(to_text(usage_chunk(kHead, "chat.completion.chunk", finish(FinishReason::kLength, "hi", 3, 2))),
            R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"base","choices":[],)"
            R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}})");
}

struct ErrorCase {
  ErrorCode code;
  int native_status;
  const char* error_type;
  int openai_status;
};

TEST(Errors, EachCodeHasItsStatusInBothProtocols) {
  const ErrorCase cases[] = {
      {ErrorCode::kValidation, 422, "validation", 400},     {ErrorCode::kAdapterNotFound, 424, "generation", 404},
      {ErrorCode::kAdapterInvalid, 424, "generation", 400}, {ErrorCode::kOverloaded, 429, "overloaded", 429},
      {ErrorCode::kGeneration, 424, "generation", 500},     {ErrorCode::kIncomplete, 500, "incomplete_generation", 500},
      {ErrorCode::kTemplate, 422, "template_error", 400},   {ErrorCode::kUnavailable, 503, "overloaded", 503},
      {ErrorCode::kTimeout, 504, "timeout", 504},
  };
  for (const ErrorCase& expected : cases) {
    const ApiError error = to_api_error({expected.code, "why"});
    EXPECT_EQ(error_status(error, ApiStyle::kNative), expected.native_status) << expected.error_type;
    EXPECT_EQ(error_status(error, ApiStyle::kOpenAi), expected.openai_status) << expected.error_type;
    const auto body = InputJson::parse(error_body(error, ApiStyle::kNative));
    EXPECT_EQ(body["error_type"], expected.error_type);
    EXPECT_NE(body["error"].get<std::string>().find("why"), std::string::npos);
  }
}

TEST(Errors, BodiesOfBothProtocols) {
  const ApiError missing = to_api_error({ErrorCode::kAdapterNotFound, "adapter 'x' not found"});
  EXPECT_EQ(error_body(missing, ApiStyle::kNative),
            R"({"error":"Request failed during generation: adapter 'x' not found","error_type":"generation",)"
            R"("error_code":"adapter_not_found"})");
  EXPECT_EQ(error_body(missing, ApiStyle::kOpenAi),
            R"({"error":{"message":"adapter 'x' not found","type":"invalid_request_error","param":null,)"
            R"("code":"model_not_found"},"error_type":"generation","error_code":"adapter_not_found"})");
  EXPECT_EQ(error_event({.failure = Failure::kValidation, .message = "bad", .param = "top_p"}, ApiStyle::kNative),
            "data: {\"error\":\"Input validation error: bad\",\"error_type\":\"validation\","
            "\"error_code\":\"invalid_value\"}\n\n");
  EXPECT_EQ(error_body({.failure = Failure::kValidation, .message = "bad", .param = "top_p"}, ApiStyle::kOpenAi),
            R"({"error":{"message":"bad","type":"invalid_request_error","param":"top_p","code":null},)"
            R"("error_type":"validation","error_code":"invalid_value"})");
}

}  // namespace
}  // namespace shoal
