#include "server/tools.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/test_service.h"
#include "server/tool_call_reader.h"

namespace shoal {
namespace {

using test::post;
using test::RawClient;
using test::RawResponse;
using test::TestService;

const std::string kTools =
    R"([{"type":"function","function":{"name":"get_weather","description":"d","parameters":)"
    R"({"type":"object","properties":{"unit":{"enum":["c","f"]},"day":{"$ref":"#/$defs/day"}},"required":["unit","day"],)"
    R"("additionalProperties":false,"$defs":{"day":{"type":"integer","minimum":1,"maximum":7}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

Parsed<ToolRequest> read(const std::string& body) { return read_tools(InputJson::parse(body), body); }

ToolRequest tools_with(const std::string& more) {
  return std::get<ToolRequest>(read("{\"tools\":" + kTools + more + "}"));
}

// As the prompt has it.
const std::string kSpelled =
    R"([{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": )"
    R"({"type": "object", "properties": {"unit": {"enum": ["c", "f"]}, "day": {"$ref": "#/$defs/day"}}, )"
    R"("required": ["unit", "day"], "additionalProperties": false, )"
    R"("$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 7}}}}}, )"
    R"({"type": "function", "function": {"name": "now"}}])";

TEST(ReadTools, KeepsTheOrderOfWhatWasSent) {
  const ToolRequest request = tools_with("");
  EXPECT_EQ(request.json, kSpelled);
  EXPECT_EQ(request.use, ToolUse::kMayCall);
  ASSERT_EQ(request.tools.size(), 2U);
  EXPECT_EQ(request.tools[0].name, "get_weather");
  EXPECT_TRUE(request.tools[0].parameters.starts_with(R"({"type":"object","properties":{"unit":)"));
  EXPECT_EQ(InputJson::parse(request.tools[1].parameters)["type"], "object");
}

TEST(ReadTools, TakesEveryChoice) {
  EXPECT_EQ(tools_with(R"(,"tool_choice":"none")").use, ToolUse::kNone);
  EXPECT_EQ(tools_with(R"(,"tool_choice":null)").use, ToolUse::kMayCall);
  EXPECT_EQ(tools_with(R"(,"tool_choice":"auto")").use, ToolUse::kMayCall);
  EXPECT_EQ(tools_with(R"(,"tool_choice":"required")").tools.size(), 2U);
  for (const char* choice :
       {R"({"type":"function","function":{"name":"now"}})", R"({"Function":{"name":"now"}})", R"("now")"}) {
    const ToolRequest request = tools_with(R"(,"tool_choice":)" + std::string(choice));
    EXPECT_EQ(request.use, ToolUse::kMustCall) << choice;
    ASSERT_EQ(request.tools.size(), 1U);
    EXPECT_EQ(request.tools[0].name, "now");
    EXPECT_EQ(request.json, kSpelled);  // the template sees all
  }
  EXPECT_EQ(std::get<ToolRequest>(read(R"({"tools":[]})")).use, ToolUse::kNone);
  EXPECT_EQ(std::get<ToolRequest>(read("{}")).json, "");
}

TEST(ReadTools, SpellsThePromptsPartAlikeForAllClients) {
  const std::string expected = R"([{"function": {"name": "f", "description": "é \"x, y: z\" \\"}, "strict": true}])";
  for (const char* tools :
       {R"([{"function":{"name":"f","description":"é \"x, y: z\" \\"},"strict":true}])",
        R"([{"function": {"name": "f", "description": "\u00e9 \"x, y: z\" \u005c"}, "strict": true}])",
        "[\n {\"function\" :\t{\"name\":\"f\",\"description\":\"\u00e9 \\\"x, y: z\\\" \\\\\"} , "
        "\"strict\":true}\r\n]"}) {
    EXPECT_EQ(std::get<ToolRequest>(read("{\"tools\":" + std::string(tools) + "}")).json, expected) << tools;
  }
}

TEST(ReadTools, NamesWhatIsWrong) {
  const auto with = [](const std::string& tool) { return "{\"tools\":[" + tool + "]}"; };
  for (const auto& [param, body] : std::vector<std::pair<std::string, std::string>>{
           {"tools", R"({"tools":{}})"},
           {"tools[0]", with("1")},
           {"tools[0].type", with(R"({"type":"code","function":{"name":"a"}})")},
           {"tools[0].function", with(R"({"type":"function"})")},
           {"tools[0].function.name", with(R"({"type":"function","function":{}})")},
           {"tools[0].function.name", with(R"({"type":"function","function":{"name":"a b"}})")},
           {"tools[0].function.name", with(R"({"type":"function","function":{"name":"a\"b"}})")},
           {"tools[0].function.parameters", with(R"({"type":"function","function":{"name":"a","parameters":[]}})")},
           {"tools", with(R"({"function":{"name":"a"}},{"function":{"name":"a"}})")},
           {"tool_choice", R"({"tool_choice":"required"})"},
           {"tool_choice", "{\"tools\":" + kTools + R"(,"tool_choice":"nobody"})"},
           {"tool_choice", "{\"tools\":" + kTools + R"(,"tool_choice":{"type":"function"}})"},
           {"tool_choice", "{\"tools\":" + kTools + R"(,"tool_choice":5})"},
           {"tool_prompt", R"({"tool_prompt":5})"}}) {
    const auto result = read(body);
    ASSERT_TRUE(std::holds_alternative<ApiError>(result)) << body;
    EXPECT_EQ(std::get<ApiError>(result).param, param) << body;
  }
}

TEST(ElementTexts, SplitsAsTheParserDoes) {
  EXPECT_EQ(element_texts(" [ 1 ,\"a,]\" , [2,[3]],{\"b\":[]} ] "),
            (std::vector<std::string_view>{"1", "\"a,]\"", "[2,[3]]", "{\"b\":[]}"}));
  EXPECT_TRUE(element_texts("[]").empty());
  EXPECT_TRUE(element_texts(" [ ] ").empty());
}

struct Told {
  std::string content, name, arguments;
  bool has_call = false;
};

Told told(const std::vector<std::string>& pieces) {
  ToolCallReader reader;
  Told all;
  const auto add = [&](const ToolCallReader::Piece& piece) {
    EXPECT_TRUE(piece.content.empty() || piece.arguments.empty());
    EXPECT_FALSE(piece.begins_call && !all.name.empty());
    all.content += piece.content;
    all.name += piece.name;
    all.arguments += piece.arguments;
  };
  for (const std::string& piece : pieces) add(reader.push(piece));
  add(reader.finish());
  all.has_call = reader.has_call();
  return all;
}

TEST(ToolCallReader, ReadsTheSameHoweverTheAnswerIsCut) {
  const std::string arguments = R"({"a":{"b":"}\"{"},"c":[{}]})";
  const std::string call = R"({"name": "f", "arguments": )" + arguments + "}";
  for (const std::string& answer : {call, " " + call}) {
    for (std::size_t i = 0; i <= answer.size(); ++i) {
      for (std::size_t j = i; j <= answer.size(); ++j) {
        const Told all = told({answer.substr(0, i), answer.substr(i, j - i), answer.substr(j)});
        ASSERT_TRUE(all.has_call);
        ASSERT_EQ(all.name, "f");
        ASSERT_EQ(all.arguments, arguments);
        ASSERT_EQ(all.content, "");
      }
    }
  }
}

TEST(ToolCallReader, KeepsWordsAndWhatWasCut) {
  EXPECT_EQ(told({" ", "\n", "H", "i {\"name\": \"f\"}"}).content, " \nHi {\"name\": \"f\"}");
  EXPECT_EQ(told({}).content, "");
  EXPECT_EQ(told({" "}).content, " ");
  EXPECT_EQ(told({"{\"name\": \"f"}).content, "{\"name\": \"f");
  const Told cut = told({R"({"name": "f", "arguments": {"a":{)", "}"});
  EXPECT_TRUE(cut.has_call);
  EXPECT_EQ(cut.arguments, R"({"a":{})");
}

InputJson chat(const TestService& service, const std::string& more) {
  const RawResponse response =
      post(service.port(), "/v1/chat/completions",
           R"({"model":"","temperature":0,"max_tokens":300,"messages":[{"role":"user","content":"hi"}],"tools":)" +
               kTools + more + "}");
  EXPECT_EQ(response.status, 200) << response.body;
  return InputJson::parse(response.body)["choices"][0];
}

TEST(ToolAnswers, CallWhatTheyMust) {
  TestService service;
  const InputJson choice = chat(service, R"(,"tool_choice":{"type":"function","function":{"name":"get_weather"}})");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const InputJson call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["function"]["name"], "get_weather");
  const InputJson arguments = InputJson::parse(call["function"]["arguments"].get<std::string>());
  EXPECT_TRUE(arguments["unit"] == "c" || arguments["unit"] == "f");
  EXPECT_TRUE(arguments["day"] >= 1 && arguments["day"] <= 7) << arguments;

  RawClient client(service.port());
  client.post(
      "/v1/chat/completions",
      R"({"model":"","temperature":0,"max_tokens":300,"stream":true,"messages":[{"role":"user","content":"hi"}],"tools":)" +
          kTools + R"(,"tool_choice":"get_weather"})");
  EXPECT_EQ(client.read_head().status, 200);
  std::string name, streamed, reason;
  while (const auto event = client.read_event()) {
    if (!event->starts_with("data: {")) continue;
    const InputJson chunk = InputJson::parse(event->substr(6))["choices"][0];
    if (chunk["finish_reason"].is_string()) reason = chunk["finish_reason"];
    if (!chunk["delta"].contains("tool_calls")) continue;
    const InputJson part = chunk["delta"]["tool_calls"][0];
    EXPECT_EQ(part["index"], 0);
    EXPECT_EQ(part.contains("id"), name.empty());
    if (name.empty()) name = part["function"]["name"];
    streamed += part["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(streamed, call["function"]["arguments"].get<std::string>());
  EXPECT_EQ(reason, "tool_calls");
}

TEST(ToolAnswers, MayBeWords) {
  TestService service;
  const InputJson free = chat(service, R"(,"tool_choice":"none")");
  EXPECT_TRUE(free["message"]["content"].is_string());
  EXPECT_FALSE(free["message"].contains("tool_calls"));
  const InputJson either = chat(service, "");
  const bool calls = either["message"].contains("tool_calls");
  EXPECT_NE(calls, either["message"]["content"].is_string());
  EXPECT_EQ(either["finish_reason"], calls ? "tool_calls" : "length");
}

TEST(ToolAnswers, StandBesideNoOtherForm) {
  TestService service;
  const RawResponse refused = post(
      service.port(), "/v1/chat/completions",
      R"({"model":"","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_object"},"tools":)" +
          kTools + "}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(InputJson::parse(refused.body)["error"]["param"], "response_format");
  const RawResponse bad = post(
      service.port(), "/v1/chat/completions",
      R"({"model":"","messages":[{"role":"user","content":"hi"}],"tools":[{"function":{"name":"f","parameters":{"type":"strange"}}}]})");
  EXPECT_EQ(bad.status, 400) << bad.body;
  EXPECT_EQ(InputJson::parse(bad.body)["error"]["param"], "tools");
}

TEST(ToolInstruction, TellsOfTheToolsWhereTheTemplateDoesNot) {
  const ToolRequest request = tools_with("");
  EXPECT_NE(tool_instruction(request, false).find(kSpelled), std::string::npos);
  EXPECT_EQ(tool_instruction(request, true).find(kSpelled), std::string::npos);
  EXPECT_EQ(tool_instruction(tools_with(R"(,"tool_choice":"none")"), false), "");
  EXPECT_TRUE(tool_instruction(tools_with(R"(,"tool_prompt":"Mine.")"), true).ends_with("\n\nMine."));
}

}  // namespace
}  // namespace shoal
