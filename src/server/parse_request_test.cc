#include "server/parse_request.h"

#include <gtest/gtest.h>

#include "server/validate.h"

namespace shoal {
namespace {

InputJson json_of(const std::string& text) { return std::get<InputJson>(parse_json(text)); }

InputJson native_body(const std::string& parameters) {
  return json_of(R"({"inputs":"hi","parameters":)" + parameters + "}");
}

ServerOptions small_options() {
  ServerOptions options;
  options.max_input_length = 15;
  options.max_total_tokens = 16;
  options.max_stop_sequences = 2;
  return options;
}

// The error of values, after types were right.
std::optional<ApiError> value_error(const std::string& parameters) {
  const auto parsed = parse_native(native_body(parameters));
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << parameters << ": " << error->message;
    return std::nullopt;
  }
  return check_values(std::get<NativeRequest>(parsed).parameters, small_options());
}

void expect_type_error(const Parsed<NativeRequest>& parsed, const std::string& param) {
  const auto* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr) << param;
  EXPECT_EQ(error->failure, Failure::kWrongType);
  EXPECT_EQ(error->param, param);
  if (param.empty()) return;
  EXPECT_NE(error->message.find("`" + param + "`"), std::string::npos) << error->message;
}

Parsed<PreparedRequest> prepared(const std::string& parameters, std::int64_t num_prompt_tokens) {
  const auto parsed = parse_native(native_body(parameters));
  return prepare_request(std::get<NativeRequest>(parsed).parameters,
                         std::vector<std::int64_t>(static_cast<std::size_t>(num_prompt_tokens), 7), small_options(),
                         /*vocab_size=*/50, /*random_seed=*/123);
}

Request request_of(const std::string& parameters, std::int64_t num_prompt_tokens = 3) {
  auto result = prepared(parameters, num_prompt_tokens);
  if (const auto* error = std::get_if<ApiError>(&result)) ADD_FAILURE() << parameters << ": " << error->message;
  return std::get<PreparedRequest>(std::move(result)).request;
}

TEST(ParseNative, DefaultsWhenParametersAreAbsent) {
  const auto parsed = parse_native(json_of(R"({"inputs":"hi","unknown":{"a":[1]}})"));
  const auto& request = std::get<NativeRequest>(parsed);
  EXPECT_EQ(request.inputs, "hi");
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.parameters.details);
  EXPECT_FALSE(request.parameters.max_new_tokens);
  EXPECT_FALSE(request.parameters.adapter_id);
}

TEST(ParseNative, AcceptsEveryKeyThatLoraxClientSends) {
  const auto parsed = parse_native(native_body(
      R"({"adapter_id":null,"adapter_source":null,"merged_adapters":null,"api_token":null,"do_sample":false,
          "max_new_tokens":20,"ignore_eos_token":false,"repetition_penalty":null,"return_full_text":false,"stop":[],
          "seed":null,"temperature":null,"top_k":null,"top_p":null,"truncate":null,"typical_p":null,"best_of":null,
          "watermark":false,"details":true,"decoder_input_details":false,"return_k_alternatives":null,
          "response_format":null})"));
  const auto* request = std::get_if<NativeRequest>(&parsed);
  ASSERT_NE(request, nullptr);
  EXPECT_TRUE(request->parameters.details);
  EXPECT_EQ(request->parameters.max_new_tokens, 20);
  EXPECT_FALSE(check_values(request->parameters, ServerOptions()));
}

TEST(ParseNative, PriorityIsAWholeNumberOfEitherSign) {
  EXPECT_EQ(request_of("{}").priority, 0);
  EXPECT_EQ(request_of(R"({"priority":null})").priority, 0);
  EXPECT_EQ(request_of(R"({"priority":-2147483648})").priority, INT32_MIN);
  EXPECT_EQ(request_of(R"({"priority":7})").priority, 7);
  for (const char* bad : {"2147483648", "1.5", "\"high\"", "true"}) {
    expect_type_error(parse_native(native_body(std::string(R"({"priority":)") + bad + "}")), "parameters.priority");
  }
}

TEST(ParseNative, NamesTheFieldOfAWrongType) {
  expect_type_error(parse_native(json_of(R"({})")), "inputs");
  expect_type_error(parse_native(json_of(R"({"inputs":null})")), "inputs");
  expect_type_error(parse_native(json_of(R"({"inputs":["a"]})")), "inputs");
  expect_type_error(parse_native(json_of(R"([1])")), "");
  expect_type_error(parse_native(json_of(R"({"inputs":"a","parameters":null})")), "");
  expect_type_error(parse_native(json_of(R"({"inputs":"a","stream":"yes"})")), "stream");
  const std::pair<const char*, const char*> cases[] = {
      {"temperature", R"({"temperature":"hot"})"},
      {"max_new_tokens", R"({"max_new_tokens":10.0})"},
      {"max_new_tokens", R"({"max_new_tokens":-1})"},
      {"max_new_tokens", R"({"max_new_tokens":4294967296})"},
      {"top_k", R"({"top_k":2147483648})"},
      {"top_k", R"({"top_k":-2147483649})"},
      {"seed", R"({"seed":-1})"},
      {"seed", R"({"seed":18446744073709551616})"},
      {"truncate", R"({"truncate":-3})"},
      {"stop", R"({"stop":null})"},
      {"stop", R"({"stop":"a"})"},
      {"stop", R"({"stop":["a",1]})"},
      {"do_sample", R"({"do_sample":null})"},
      {"details", R"({"details":null})"},
      {"watermark", R"({"watermark":null})"},
      {"ignore_eos_token", R"({"ignore_eos_token":null})"},
      {"decoder_input_details", R"({"decoder_input_details":null})"},
      {"adapter_id", R"({"adapter_id":5})"},
      {"return_full_text", R"({"return_full_text":1})"},
  };
  for (const auto& [field, parameters] : cases) {
    expect_type_error(parse_native(native_body(parameters)), std::string("parameters.") + field);
  }
}

TEST(ParseNative, TakesTheExtremesOfEachInteger) {
  const auto parsed =
      parse_native(native_body(R"({"seed":18446744073709551615,"max_new_tokens":4294967295,"top_k":2147483647})"));
  const auto& parameters = std::get<NativeRequest>(parsed).parameters;
  EXPECT_EQ(parameters.seed, 18446744073709551615U);
  EXPECT_EQ(parameters.max_new_tokens, 4294967295);
  EXPECT_EQ(parameters.top_k, 2147483647);
}

TEST(CheckValues, RefusesEachBadValueByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"best_of", R"({"best_of":3})"},
      {"best_of", R"({"best_of":2})"},
      {"seed", R"({"best_of":2,"do_sample":true,"seed":5})"},
      {"best_of", R"({"best_of":0})"},
      {"merged_adapters.weights", R"({"merged_adapters":{"ids":["a"]}})"},
      {"temperature", R"({"temperature":-0.1})"},
      {"temperature", R"({"temperature":1e39})"},
      {"repetition_penalty", R"({"repetition_penalty":0})"},
      {"frequency_penalty", R"({"frequency_penalty":2.01})"},
      {"presence_penalty", R"({"presence_penalty":-2.01})"},
      {"top_p", R"({"top_p":0})"},
      {"top_p", R"({"top_p":1.01})"},
      {"typical_p", R"({"typical_p":1})"},
      {"typical_p", R"({"typical_p":0})"},
      {"top_k", R"({"top_k":0})"},
      {"top_k", R"({"top_k":-1})"},
      {"return_k_alternatives", R"({"return_k_alternatives":21})"},
      {"max_new_tokens", R"({"max_new_tokens":0})"},
      {"stop", R"({"stop":["a","b","c"]})"},
      {"stop", R"({"stop":["a",""]})"},
      {"truncate", R"({"truncate":0})"},
      {"truncate", R"({"truncate":16})"},
      {"adapter_id", R"({"adapter_id":"a\nx-evil: 1"})"},
      {"schema", R"({"schema":{"type":"object"}})"},
      {"grammar", R"({"grammar":{"type":"json"}})"},
      {"top_n_tokens", R"({"top_n_tokens":21})"},
      {"min_p", R"({"min_p":1.1})"},
      {"min_p", R"({"min_p":-0.1})"},
      {"logit_bias", R"({"logit_bias":{"5":100.5}})"},
      {"logit_bias", R"({"logit_bias":{"5":-1e39}})"},
  };
  for (const auto& [field, parameters] : cases) {
    const auto error = value_error(parameters);
    ASSERT_TRUE(error) << parameters;
    EXPECT_EQ(error->failure, Failure::kValidation) << parameters;
    EXPECT_EQ(error->param, field) << parameters;
    EXPECT_NE(error->message.find(field), std::string::npos) << error->message;
  }
}

TEST(CheckValues, TakesTheEndsOfEachRange) {
  for (const char* parameters :
       {R"({"best_of":1})", R"({"best_of":2,"temperature":0.5})", R"({"best_of":2,"top_p":1})", R"({"temperature":0})",
        R"({"frequency_penalty":2,"presence_penalty":-2})", R"({"top_p":1})", R"({"top_k":1})", R"({"typical_p":0.5})",
        R"({"stop":["a","b"]})", R"({"truncate":15})", R"({"response_format":{"type":"text"}})",
        R"({"repetition_penalty":0.01})", R"({"adapter_id":""})", R"({"adapter_id":"","adapter_source":"hub"})",
        R"({"adapter_id":null,"adapter_source":null})", R"({"adapter_source":"nonsense"})",
        R"({"schema":null,"grammar":null,"merged_adapters":null,"min_p":0,"top_n_tokens":0,"unheard_of":5})",
        R"({"min_p":1,"top_n_tokens":20,"return_k_alternatives":20,"min_tokens":0,"logit_bias":{"5":-100,"0":100}})"}) {
    const auto error = value_error(parameters);
    EXPECT_FALSE(error) << parameters << ": " << error->message;
  }
}

// LoRAX's order: the first of several faults is told.
TEST(CheckValues, ChecksInOrder) {
  const std::pair<const char*, const char*> order[] = {
      {"best_of", R"("best_of":3)"},
      {"temperature", R"("temperature":-1)"},
      {"repetition_penalty", R"("repetition_penalty":0)"},
      {"frequency_penalty", R"("frequency_penalty":3)"},
      {"presence_penalty", R"("presence_penalty":3)"},
      {"top_p", R"("top_p":0)"},
      {"typical_p", R"("typical_p":0)"},
      {"top_k", R"("top_k":0)"},
      {"return_k_alternatives", R"("return_k_alternatives":0)"},
      {"max_new_tokens", R"("max_new_tokens":0)"},
      {"stop", R"("stop":["","",""])"},
      {"truncate", R"("truncate":0)"},
      {"adapter_source", R"("adapter_id":"x","adapter_source":"nonsense")"},
  };
  std::string later;
  for (auto fault = std::rbegin(order); fault != std::rend(order); ++fault) {
    later = later.empty() ? fault->second : later + "," + fault->second;
    const auto error = value_error("{" + later + "}");
    ASSERT_TRUE(error);
    EXPECT_EQ(error->param, fault->first);
  }
}

TEST(CheckValues, TheSeedOfSeveralAnswersComesBeforeTruncate) {
  const auto error = value_error(R"({"best_of":2,"top_p":0.9,"seed":1,"truncate":0})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "seed");
}

TEST(CheckValues, AnAdapterSourceMattersOnlyWithAnAdapter) {
  EXPECT_FALSE(value_error(R"({"adapter_id":"__base_model__","adapter_source":"hub"})"));
  EXPECT_FALSE(value_error(R"({"adapter_id":"x","adapter_source":"LOCAL"})"));
  for (const char* source : {"hub", "s3", "nonsense"}) {
    const auto error = value_error(std::string(R"({"adapter_id":"x","adapter_source":")") + source + "\"}");
    ASSERT_TRUE(error);
    EXPECT_EQ(error->failure, Failure::kAdapterInvalid);
  }
}

TEST(CheckValues, AnApiTokenMayStandInAHeader) {
  EXPECT_FALSE(value_error(R"({"adapter_id":"x","api_token":"hf_A.b-c~1"})"));
  EXPECT_FALSE(value_error(R"({"adapter_id":"x","api_token":""})"));
  for (const std::string& token :
       {std::string("hf x"), std::string("a\\r\\nb"), std::string("\xC3\xA4"), std::string(1025, 'a')}) {
    const auto error = value_error(R"({"adapter_id":"x","api_token":")" + token + "\"}");
    ASSERT_TRUE(error) << token;
    EXPECT_EQ(error->param, "api_token");
    EXPECT_EQ(error->message.find("hf x"), std::string::npos) << "a secret";
  }
}

TEST(PrepareRequest, ChecksLengthsAtTheirExactLimits) {
  EXPECT_EQ(request_of(R"({"max_new_tokens":1})", 15).max_new_tokens, 1);
  EXPECT_EQ(request_of(R"({"max_new_tokens":13})", 3).max_new_tokens, 13);
  auto error = std::get<ApiError>(prepared(R"({"max_new_tokens":14})", 3));
  EXPECT_EQ(error.param, "max_new_tokens");
  EXPECT_NE(error.message.find("<= 16, given: 3 prompt tokens and 14"), std::string::npos) << error.message;
  // The sum is checked before the input's own length.
  EXPECT_EQ(std::get<ApiError>(prepared(R"({"max_new_tokens":5})", 20)).param, "max_new_tokens");
  EXPECT_EQ(std::get<ApiError>(prepared("{}", 0)).param, "inputs");
}

TEST(PrepareRequest, WithoutMaxNewTokensFillsTheContext) {
  EXPECT_EQ(request_of("{}", 3).max_new_tokens, 13);
  EXPECT_TRUE(std::holds_alternative<ApiError>(prepared("{}", 16)));
}

TEST(PrepareRequest, TruncatesBeforeLengthsAreChecked) {
  const auto parsed = parse_native(native_body(R"({"truncate":2,"max_new_tokens":4})"));
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < 40; ++id) ids.push_back(id);
  auto result = prepare_request(std::get<NativeRequest>(parsed).parameters, std::move(ids), small_options(), 50,
                                /*random_seed=*/1);
  const auto& ready = std::get<PreparedRequest>(result);
  EXPECT_EQ(ready.request.prompt_ids, (std::vector<std::int64_t>{38, 39}));
  EXPECT_EQ(ready.info.prompt_tokens, 2);
}

TEST(PrepareRequest, SamplesOnlyWhenAskedTo) {
  for (const char* greedy :
       {"{}", R"({"temperature":0})", R"({"temperature":1})", R"({"temperature":0,"do_sample":true})",
        R"({"temperature":1e-6,"top_k":3})", R"({"top_p":1.0})", R"({"seed":5})"}) {
    auto result = prepared(greedy, 3);
    const auto& ready = std::get<PreparedRequest>(result);
    EXPECT_TRUE(ready.request.sampling.greedy) << greedy;
    EXPECT_FALSE(ready.info.seed) << greedy;
  }
  for (const char* sampled : {R"({"do_sample":true})", R"({"temperature":0.5})", R"({"top_k":3})", R"({"top_p":0.5})",
                              R"({"typical_p":0.5})"}) {
    auto result = prepared(sampled, 3);
    const auto& ready = std::get<PreparedRequest>(result);
    EXPECT_FALSE(ready.request.sampling.greedy) << sampled;
    EXPECT_EQ(ready.info.seed, 123U) << sampled;
  }
}

TEST(PrepareRequest, ClampsTopKToTheVocabulary) {
  EXPECT_EQ(request_of(R"({"top_k":2147483647})").sampling.top_k, 50);
  EXPECT_EQ(request_of(R"({"top_k":3,"seed":9})").sampling.seed, 9U);
}

TEST(PrepareRequest, RefusesTokenIdsOutsideTheVocabulary) {
  GenerateParameters parameters;
  parameters.max_new_tokens = 1;
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{50}}) {
    EXPECT_TRUE(std::holds_alternative<ApiError>(prepare_request(parameters, {1, id}, small_options(), 50, 1)));
  }
}

TEST(ParseCompletion, TakesPromptsInEveryForm) {
  const auto prompts_of = [](const std::string& prompt) {
    const auto parsed = parse_completion(json_of(R"({"model":"","prompt":)" + prompt + "}"));
    const auto* request = std::get_if<CompletionRequest>(&parsed);
    return request == nullptr ? std::vector<CompletionPrompt>() : request->prompts;
  };
  const CompletionPrompt text = "a";
  const CompletionPrompt ids = std::vector<std::int64_t>{1, 2};
  EXPECT_EQ(prompts_of("\"a\""), (std::vector{text}));
  EXPECT_EQ(prompts_of("[\"a\"]"), (std::vector{text}));
  EXPECT_EQ(prompts_of("[1,2]"), (std::vector{ids}));
  EXPECT_EQ(prompts_of("[[1,2]]"), (std::vector{ids}));
  EXPECT_EQ(prompts_of("[\"a\",\"a\"]"), (std::vector{text, text}));
  EXPECT_EQ(prompts_of("[[1,2],\"a\"]"), (std::vector{ids, text}));
  EXPECT_EQ(prompts_of("[]"), (std::vector{CompletionPrompt(std::vector<std::int64_t>())}));
  for (const char* bad :
       {"null", "5", "[\"a\",5]", "[[1],[-2]]", "[1,\"a\"]", "[1.5]", "[-1]", "{}", "[true]", "[[[1]]]"}) {
    const auto parsed = parse_completion(json_of(R"({"model":"","prompt":)" + std::string(bad) + "}"));
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << bad;
    EXPECT_EQ(std::get<ApiError>(parsed).param, "prompt") << bad;
  }
}

TEST(ParseCompletion, ReadsOpenAiFields) {
  const auto parsed = parse_completion(
      json_of(R"({"model":"m","prompt":"a","max_tokens":3,"stop":"x","stream":true,"echo":true,"n":1,"best_of":1,
                  "logprobs":null,"user":"u","stream_options":{"include_usage":true},"logit_bias":{}})"));
  const auto& request = std::get<CompletionRequest>(parsed);
  EXPECT_EQ(request.parameters.max_new_tokens, 3);
  EXPECT_EQ(request.parameters.stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.parameters.return_full_text, true);
  EXPECT_EQ(request.parameters.unserved, "");
}

TEST(ParseCompletion, NotesWhatIsNotServed) {
  for (const auto& [field, json] :
       std::vector<std::pair<std::string, std::string>>{{"top_logprobs", "5"},
                                                        {"schema", "{\"type\":\"object\"}"},
                                                        {"guided_whitespace_pattern", "\" \""},
                                                        {"tool_choice", "\"required\""},
                                                        {"typical_p", "0.5"},
                                                        {"truncate", "5"},
                                                        {"merged_adapters", "{\"ids\":[]}"},
                                                        {"modalities", "[\"audio\"]"}}) {
    const auto parsed = parse_completion(json_of(R"({"model":"m","prompt":"a",")" + field + "\":" + json + "}"));
    EXPECT_EQ(std::get<CompletionRequest>(parsed).parameters.unserved, field);
  }
}

TEST(ParseScores, NamesTheFieldOfAWrongType) {
  const std::pair<const char*, const char*> completions[] = {
      {"logprobs", R"("logprobs":true)"},
      {"logprobs", R"("logprobs":1.5)"},
      {"logit_bias", R"("logit_bias":[1])"},
      {"logit_bias", R"("logit_bias":{"x":1})"},
      {"logit_bias", R"("logit_bias":{"-1":1})"},
      {"logit_bias", R"("logit_bias":{"1 ":1})"},
      {"logit_bias", R"("logit_bias":{"99999999999":1})"},
      {"logit_bias", R"("logit_bias":{"1":"a"})"},
      {"logit_bias", R"("logit_bias":{"1":1,"01":2})"},
      {"min_tokens", R"("min_tokens":-1)"},
      {"min_p", R"("min_p":"x")"},
      {"prompt_logprobs", R"("prompt_logprobs":1,"stream":true)"},
  };
  for (const auto& [field, json] : completions) {
    const auto parsed = parse_completion(json_of(R"({"model":"m","prompt":"a",)" + std::string(json) + "}"));
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << json;
    EXPECT_EQ(std::get<ApiError>(parsed).param, field);
  }
  const std::pair<const char*, const char*> chats[] = {{"logprobs", R"("logprobs":1)"},
                                                       {"top_logprobs", R"("top_logprobs":3)"},
                                                       {"top_logprobs", R"("top_logprobs":3,"logprobs":false)"}};
  for (const auto& [field, json] : chats) {
    const auto parsed = parse_chat(json_of(R"({"model":"m","messages":[],)" + std::string(json) + "}"));
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << json;
    EXPECT_EQ(std::get<ApiError>(parsed).param, field);
  }
}

TEST(ParseScores, NumbersOfTokensHaveALimit) {
  for (const auto& [field, json] :
       std::vector<std::pair<std::string, std::string>>{{"logprobs", R"("logprobs":21)"},
                                                        {"logprobs", R"("logprobs":-1)"},
                                                        {"prompt_logprobs", R"("prompt_logprobs":21)"}}) {
    const auto parsed = parse_completion(json_of(R"({"model":"m","prompt":"a",)" + json + "}"));
    const auto error = check_values(std::get<CompletionRequest>(parsed).parameters, small_options());
    ASSERT_TRUE(error) << json;
    EXPECT_EQ(error->param, field);
    EXPECT_NE(error->message.find("from 0 to 20, given: "), std::string::npos) << error->message;
  }
  const auto chat = parse_chat(json_of(R"({"model":"m","messages":[],"logprobs":true,"top_logprobs":21})"));
  EXPECT_EQ(check_values(std::get<ChatRequest>(chat).parameters, small_options())->param, "top_logprobs");
}

TEST(CheckValues, CountsOfChoicesHaveTheirOrder) {
  const auto error_of = [](const std::string& fields) {
    const auto parsed = parse_completion(json_of(R"({"model":"m","prompt":"a",)" + fields + "}"));
    return check_values(std::get<CompletionRequest>(parsed).parameters, small_options());
  };
  EXPECT_FALSE(error_of(R"("n":1,"best_of":1)"));
  EXPECT_FALSE(error_of(R"("n":128)"));
  EXPECT_FALSE(error_of(R"("n":2,"best_of":5,"seed":3)"));
  for (const auto& [field, json] : std::vector<std::pair<std::string, std::string>>{{"n", R"("n":0)"},
                                                                                    {"n", R"("n":-1)"},
                                                                                    {"n", R"("n":129)"},
                                                                                    {"best_of", R"("n":3,"best_of":2)"},
                                                                                    {"best_of", R"("best_of":0)"},
                                                                                    {"best_of", R"("best_of":129)"}}) {
    const auto error = error_of(json);
    ASSERT_TRUE(error) << json;
    EXPECT_EQ(error->param, field) << json;
    EXPECT_NE(error->message.find("given: "), std::string::npos) << error->message;
  }
}

TEST(PrepareRequest, TokenRulesReachTheScheduler) {
  const Request request = request_of(R"({"min_tokens":2,"logit_bias":{"9":1.5,"3":-100},"min_p":0.25,"seed":1})");
  EXPECT_EQ(request.min_new_tokens, 2);
  ASSERT_EQ(request.logit_bias.size(), 2U);
  EXPECT_EQ(request.logit_bias[0].id, 3);
  EXPECT_EQ(request.logit_bias[1].value, 1.5F);
  EXPECT_FALSE(request.sampling.greedy) << "min_p samples, as top_p does";
  EXPECT_EQ(request.sampling.min_p, 0.25F);
  EXPECT_EQ(std::get<ApiError>(prepared(R"({"logit_bias":{"50":1}})", 3)).param, "logit_bias");
  EXPECT_EQ(std::get<ApiError>(prepared(R"({"min_tokens":5,"max_new_tokens":4})", 3)).param, "min_tokens");
}

TEST(ParseCompletion, MaxTokens0IsThePromptAloneWhereItIsEchoed) {
  const auto parse = [](const std::string& fields) {
    return std::get<CompletionRequest>(parse_completion(json_of(R"({"model":"m","prompt":"a",)" + fields + "}")));
  };
  EXPECT_TRUE(parse(R"("max_tokens":0,"echo":true)").prompt_only);
  EXPECT_FALSE(parse(R"("max_tokens":1,"echo":true)").prompt_only);
  EXPECT_TRUE(check_values(parse(R"("max_tokens":0)").parameters, small_options()));
}

TEST(ParseCompletion, TakesUnservedFieldsThatAskForNothing) {
  const auto parsed = parse_completion(json_of(
      R"({"model":"m","prompt":"a","n":1,"best_of":1,"logprobs":null,"top_logprobs":0,"logit_bias":{},"suffix":"",
          "tools":[],"tool_choice":"auto","function_call":"none","typical_p":1,"length_penalty":1.0,"watermark":false,
          "modalities":["text"],"response_format":{"type":"text"},"schema":null,"user":"u","unheard_of":5})"));
  EXPECT_EQ(std::get<CompletionRequest>(parsed).parameters.unserved, "");
}

TEST(ParseChat, ReadsMessagesAndParts) {
  const auto parsed = parse_chat(json_of(
      R"({"model":"m","max_completion_tokens":4,"temperature":0,"messages":[{"role":"assistant","content":null,
          "tool_calls":[{"id":"c0","function":{"name":"f","arguments":"{\"a\":1}"}},{"function":{"name":"g","arguments":""}},
                        {"function":{"name":"h","arguments":{"b":[2]}}},{"function":{"name":"i"}},
                        {"function":{"name":"j","arguments":"{\"a\":"}}]},
          {"role":"user","name":"x","content":[{"type":"text","text":"see "},
          {"type":"image_url","image_url":{"url":"http://h/i.png","detail":"low"}}]}]})"));
  const auto& request = std::get<ChatRequest>(parsed);
  ASSERT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.messages[0].content, "");
  std::vector<std::string> calls;
  for (const PastCall& call : request.messages[0].calls) calls.push_back(call.id + call.name + call.arguments);
  EXPECT_EQ(calls, (std::vector<std::string>{R"(c0f{"a":1})", "g{}", R"(h{"b":[2]})", "i{}", R"(j"{\"a\":")"}));
  EXPECT_EQ(request.messages[1].content, "see ![](http://h/i.png)");
  EXPECT_EQ(request.parameters.max_new_tokens, 4);
  EXPECT_EQ(request.parameters.max_new_tokens_name, "max_completion_tokens");
}

TEST(ParseChat, NamesTheMessageAtFault) {
  for (const auto& [param, messages] : std::vector<std::pair<std::string, std::string>>{
           {"messages[0].role", R"([{"content":"x"}])"},
           {"messages[1].content", R"([{"role":"user","content":"x"},{"role":"user","content":5}])"},
           {"messages[0].content", R"([{"role":"user","content":[{"type":"audio"}]}])"},
           {"messages[0].content", R"([{"role":"user"}])"},
           {"messages[1].content", R"([{"role":"user","content":"x"},{"role":"system","content":null}])"},
           {"messages[0].tool_calls", R"([{"role":"assistant","tool_calls":{}}])"},
           {"messages[0].tool_calls[0]", R"([{"role":"assistant","tool_calls":[{}]}])"},
           {"messages[0].tool_calls[1]",
            R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}},{"function":{"name":""}}]}])"},
           {"messages[0].tool_calls[0].function.arguments",
            R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}])"},
           {"messages[0].content", R"([{"role":"user","content":[]}])"},
           {"messages", R"({})"}}) {
    const auto parsed = parse_chat(json_of(R"({"model":"m","messages":)" + messages + "}"));
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << messages;
    EXPECT_EQ(std::get<ApiError>(parsed).param, param);
  }
}

TEST(ParseChat, AssistantsAndToolsMaySayNothing) {
  for (const char* content : {"", R"(,"content":null)", R"(,"content":[])", R"(,"content":"")"}) {
    for (const char* role : {"assistant", "tool"}) {
      const auto parsed =
          parse_chat(json_of(std::string(R"({"model":"m","messages":[{"role":")") + role + '"' + content + "}]}"));
      ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed)) << role << content;
      EXPECT_EQ(std::get<ChatRequest>(parsed).messages[0].content, "");
    }
  }
}

TEST(ParseChat, SamplesUnlessTemperatureIsZero) {
  const auto greedy_with = [](const std::string& extra) {
    auto parsed = parse_chat(json_of(R"({"model":"m","messages":[])" + extra + "}"));
    auto result = prepare_request(std::get<ChatRequest>(parsed).parameters, {1}, small_options(), 50, 1);
    return std::get<PreparedRequest>(result).request.sampling.greedy;
  };
  EXPECT_FALSE(greedy_with(""));
  EXPECT_FALSE(greedy_with(",\"temperature\":1"));
  EXPECT_TRUE(greedy_with(",\"temperature\":0"));
}

}  // namespace
}  // namespace shoal
