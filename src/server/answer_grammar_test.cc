#include "server/answer_grammar.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "server/grammar_compiler.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::get;
using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

struct Read {
  std::optional<AnswerGrammar> grammar;
  std::optional<ApiError> error;
};

Read read_openai(const std::string& body) {
  GenerateParameters parameters;
  auto error = read_openai_grammar(InputJson::parse(body), body, parameters);
  return {.grammar = parameters.grammar, .error = std::move(error)};
}

Read read_native(const std::string& body) {
  GenerateParameters parameters;
  auto error = read_native_grammar(InputJson::parse(body), body, parameters);
  return {.grammar = parameters.grammar, .error = std::move(error)};
}

TEST(MemberText, IsTheTextAsItWasSent) {
  const std::string object =
      " {\"a\" : {\"z\": [1, \"}\", {}], \"b\":\"\\\"\"} ,\n\"n\":-1.5e3,\"t\":true,\"s\":\"x\\\\\",\"k\\u0065y\":null "
      ", \"a\":{}}";
  EXPECT_EQ(member_text(object, "n"), "-1.5e3");
  EXPECT_EQ(member_text(object, "t"), "true");
  EXPECT_EQ(member_text(object, "s"), "\"x\\\\\"");
  EXPECT_EQ(member_text(object, "key"), "null");
  EXPECT_EQ(member_text(object, "a"), "{}");  // the last, as for the parser
  EXPECT_EQ(member_text(object.substr(0, object.rfind(',')) + "}", "a"), "{\"z\": [1, \"}\", {}], \"b\":\"\\\"\"}");
  EXPECT_EQ(member_text(object, "z"), std::nullopt);
  EXPECT_EQ(member_text("{}", "a"), std::nullopt);
  EXPECT_EQ(member_text("{\"a\":1}", "a"), "1");
  EXPECT_EQ(member_text("[]", "a"), std::nullopt);
}

TEST(ReadGrammar, TakesEveryFormOfOpenAi) {
  const struct {
    const char* body;
    GrammarKind kind;
    const char* text;
    const char* field;
  } cases[] = {
      {R"({"response_format":{"type":"json_object"}})", GrammarKind::kJsonSchema, R"({"type":"object"})",
       "response_format"},
      {R"({"response_format":{"type":"json_object","schema":{"z":1,"a":2}}})", GrammarKind::kJsonSchema,
       R"({"z":1,"a":2})", "response_format"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"z":1,"a":2}}}})",
       GrammarKind::kJsonSchema, R"({"z":1,"a":2})", "response_format"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":null}}})",
       GrammarKind::kJsonSchema, R"({"type":"object"})", "response_format"},
      {R"({"guided_json":{"z":1,"a":2}})", GrammarKind::kJsonSchema, R"({"z":1,"a":2})", "guided_json"},
      {R"({"guided_json":"{\"z\":1}"})", GrammarKind::kJsonSchema, R"({"z":1})", "guided_json"},
      {R"({"guided_regex":"a+"})", GrammarKind::kRegex, "a+", "guided_regex"},
      {R"({"guided_choice":["b","a"]})", GrammarKind::kChoice, R"(["b","a"])", "guided_choice"},
      {R"({"guided_grammar":"start: \"a\""})", GrammarKind::kLark, "start: \"a\"", "guided_grammar"},
      {R"({"structured_outputs":{"regex":"a+","json":null}})", GrammarKind::kRegex, "a+", "structured_outputs.regex"},
      {R"({"structured_outputs":{"json":{"z":1,"a":2}}})", GrammarKind::kJsonSchema, R"({"z":1,"a":2})",
       "structured_outputs.json"},
      {R"({"structured_outputs":{"choice":["x"]}})", GrammarKind::kChoice, R"(["x"])", "structured_outputs.choice"},
      {R"({"structured_outputs":{"grammar":"start: \"a\""}})", GrammarKind::kLark, "start: \"a\"",
       "structured_outputs.grammar"},
      {R"({"structured_outputs":{"json_object":true}})", GrammarKind::kJsonSchema, R"({"type":"object"})",
       "structured_outputs.json_object"},
  };
  for (const auto& each : cases) {
    const Read read = read_openai(each.body);
    ASSERT_FALSE(read.error) << each.body << ": " << read.error->message;
    ASSERT_TRUE(read.grammar) << each.body;
    EXPECT_EQ(read.grammar->spec.kind, each.kind) << each.body;
    EXPECT_EQ(read.grammar->spec.text, each.text) << each.body;
    EXPECT_EQ(read.grammar->field, each.field) << each.body;
  }
}

TEST(ReadGrammar, TextAndNullAskForNone) {
  for (const char* body :
       {"{}", R"({"response_format":null,"guided_json":null,"structured_outputs":null})",
        R"({"response_format":{"type":"text"}})", R"({"structured_outputs":{"json":null,"json_object":false}})"}) {
    const Read read = read_openai(body);
    EXPECT_FALSE(read.error) << body;
    EXPECT_FALSE(read.grammar) << body;
  }
}

TEST(ReadGrammar, WrongShapesAreNamed) {
  for (const auto& [field, body] : std::vector<std::pair<std::string, std::string>>{
           {"response_format", R"({"response_format":"json_object"})"},
           {"response_format", R"({"response_format":{}})"},
           {"response_format", R"({"response_format":{"type":"regex"}})"},
           {"response_format", R"({"response_format":{"type":"json_schema"}})"},
           {"response_format", R"({"response_format":{"type":"json_schema","json_schema":{"schema":5}}})"},
           {"response_format", R"({"response_format":{"type":"json_object","schema":"{}"}})"},
           {"guided_json", R"({"guided_json":[1]})"},
           {"guided_regex", R"({"guided_regex":1})"},
           {"guided_choice", R"({"guided_choice":[]})"},
           {"guided_choice", R"({"guided_choice":["a",1]})"},
           {"guided_grammar", R"({"guided_grammar":{}})"},
           {"structured_outputs", R"({"structured_outputs":"x"})"},
           {"structured_outputs.structural_tag", R"({"structured_outputs":{"structural_tag":"x"}})"},
           {"guided_regex", R"({"response_format":{"type":"json_object"},"guided_regex":"a"})"}}) {
    const Read read = read_openai(body);
    ASSERT_TRUE(read.error) << body;
    EXPECT_EQ(read.error->param, field) << body;
    EXPECT_EQ(read.error->failure, Failure::kWrongType);
  }
}

TEST(ReadGrammar, NativeHonoursTheTypeInBothSpellings) {
  for (const char* type : {"json_object", "json_schema", "JsonObject", "JsonSchema"}) {
    const std::string body = R"({"inputs":"x","parameters":{"response_format":{"type":")" + std::string(type) +
                             R"(","schema":{"z":1,"a":2}}}})";
    const Read read = read_native(body);
    ASSERT_TRUE(read.grammar) << body;
    EXPECT_EQ(read.grammar->spec.text, R"({"z":1,"a":2})");
    EXPECT_EQ(read.grammar->field, "parameters.response_format");
  }
  for (const char* type : {"text", "Text"}) {
    const Read read =
        read_native(R"({"parameters":{"response_format":{"type":")" + std::string(type) + R"(","schema":{}}}})");
    EXPECT_FALSE(read.grammar || read.error);
  }
  // What lorax-client sends without a schema.
  EXPECT_EQ(
      read_native(R"({"parameters":{"response_format":{"type":"json_object","schema":null}}})").grammar->spec.text,
      R"({"type":"object"})");
  EXPECT_TRUE(read_native(R"({"parameters":{"response_format":{"schema":{}}}})").error);
  const Read nested = read_native(
      R"({"parameters":{"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"string"}}}}})");
  ASSERT_TRUE(nested.grammar) << "OpenAI's place";
  EXPECT_EQ(nested.grammar->spec.text, R"({"type":"string"})");
  const Read both = read_native(
      R"({"parameters":{"response_format":{"type":"json_schema","schema":{},"json_schema":{"schema":{"type":"string"}}}}})");
  EXPECT_EQ(both.grammar->spec.text, "{}");
  EXPECT_FALSE(read_native(R"({"parameters":null})").error);
}

const char* const kSchema = R"({"type":"object","properties":{"b":{"type":"boolean"},"a":{"enum":["x","yy"]}},)"
                            R"("required":["b","a"],"additionalProperties":false})";

TEST(GrammarAnswers, AreTheSameWholeStreamedAndNative) {
  TestService service;
  const std::string format = R"({"type":"json_object","schema":)" + std::string(kSchema) + "}";
  const RawResponse native =
      post(service.port(), "/generate",
           R"({"inputs":"hi","parameters":{"max_new_tokens":200,"details":true,"response_format":)" + format + "}}");
  ASSERT_EQ(native.status, 200) << native.body;
  const InputJson answer = InputJson::parse(native.body);
  EXPECT_EQ(answer["details"]["finish_reason"], "eos_token");
  const std::string text = answer["generated_text"];
  const InputJson made = InputJson::parse(text);
  EXPECT_TRUE(made["b"].is_boolean() && (made["a"] == "x" || made["a"] == "yy")) << text;
  EXPECT_EQ(made.size(), 2U);
  EXPECT_LT(text.find("\"b\""), text.find("\"a\""));

  const std::string body = R"({"model":"","prompt":"hi","temperature":0,"max_tokens":200,"response_format":)" + format;
  const RawResponse whole = post(service.port(), "/v1/completions", body + "}");
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(InputJson::parse(whole.body)["choices"][0]["text"], text);
  EXPECT_EQ(InputJson::parse(whole.body)["choices"][0]["finish_reason"], "stop");
  RawClient client(service.port());
  client.post("/v1/completions", body + R"(,"stream":true})");
  EXPECT_EQ(client.read_head().status, 200);
  std::string streamed;
  while (const auto event = client.read_event()) {
    if (event->starts_with("data: {"))
      streamed += InputJson::parse(event->substr(6))["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, text);
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(GrammarAnswers, ABadGrammarIsRefusedWithItsReasonAndTheServerGoesOn) {
  TestService service;
  for (const auto& [fields, named] : std::vector<std::pair<std::string, std::string>>{
           {R"("guided_regex":"(a")", "guided_regex"},
           {R"("guided_grammar":"start: none")", "guided_grammar"},
           {R"("response_format":{"type":"json_object","schema":{"type":"strange"}})", "response_format"},
           {R"("response_format":{"type":"json_object","schema":{"$ref":"#/$defs/none"}})", "response_format"},
           {R"("guided_json":"{")", "guided_json"}}) {
    for (const char* stream : {"false", "true"}) {
      const RawResponse refused =
          post(service.port(), "/v1/completions",
               R"({"model":"","prompt":"hi","max_tokens":5,"stream":)" + std::string(stream) + "," + fields + "}");
      EXPECT_EQ(refused.status, 400) << refused.body;
      const InputJson error = InputJson::parse(refused.body)["error"];
      EXPECT_EQ(error["param"], named);
      EXPECT_NE(error["message"].get<std::string>().find("not usable: "), std::string::npos) << error;
    }
  }
  const RawResponse native =
      post(service.port(), "/generate",
           R"({"inputs":"hi","parameters":{"response_format":{"type":"json_object","schema":{"type":"strange"}}}})");
  EXPECT_EQ(native.status, 422);
  EXPECT_EQ(InputJson::parse(native.body)["error_type"], "validation");
  EXPECT_EQ(post(service.port(), "/generate", R"({"inputs":"hi","parameters":{"max_new_tokens":3}})").status, 200);
  EXPECT_TRUE(service.comes_to_rest());
}

TEST(GrammarCompiler, KeepsWhatItCompiledForTheSameTenantAndTextsAlone) {
  const auto make_texts = [] {
    return std::make_shared<const Texts>(test::load_tokenizer(test::byte_level_tokenizer()), nullptr);
  };
  const auto texts = make_texts();
  GrammarCompiler compiler;
  const auto compile = [&](const std::string& tenant, const std::shared_ptr<const Texts>& of) {
    std::promise<std::shared_ptr<const Grammar>> promise;
    compiler.compile({.kind = GrammarKind::kRegex, .text = "a+"}, of, tenant,
                     [&](const GrammarCompiler::Compiled& compiled) { promise.set_value(compiled.value()); });
    return promise.get_future().get();
  };
  const auto first = compile("one", texts);
  EXPECT_EQ(compile("one", texts), first);
  EXPECT_NE(compile("two", texts), first);
  EXPECT_NE(compile("one", make_texts()), first) << "another vocabulary";
}

}  // namespace
}  // namespace shoal
