#include "server/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shoal {

namespace {

constexpr std::size_t kMaxTools = 128;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::string_view kNoParameters = R"({"type":"object","properties":{},"additionalProperties":false})";
// As for other JSON answers. The last of two keys counts: no schema brings whitespace of its own.
constexpr std::string_view kBoundedWhitespace = R"("x-guidance":{"whitespace_pattern":"[\\x20\\x0A\\x0D\\x09]{1,20}"})";

ApiError wrong(std::string param, std::string_view what) {
  return {.failure = Failure::kWrongType, .message = fmt::format("`{}`: {}", param, what), .param = param};
}

// Names stand in grammar, prompt and answer as they are.
bool is_name(std::string_view name) {
  constexpr std::string_view kMarks = "_-./:";
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), fits);
}

Parsed<Tool> read_tool(const InputJson& json, std::string_view text, const std::string& field) {
  if (!json.is_object()) return wrong(field, fmt::format("expected an object, got {}", json.type_name()));
  const InputJson* type = find_set(json, "type");
  if (type != nullptr && *type != "function") return wrong(field + ".type", "only `function` is served");
  const InputJson* function = find_set(json, "function");
  if (function == nullptr || !function->is_object()) return wrong(field + ".function", "expected an object");
  const InputJson* name = find_set(*function, "name");
  if (name == nullptr || !name->is_string() || !is_name(name->get_ref<const std::string&>())) {
    return wrong(field + ".function.name",
                 fmt::format("expected 1 to {} letters, digits and any of _ - . / :", kMaxNameBytes));
  }
  Tool tool{.name = name->get<std::string>(), .parameters = std::string(kNoParameters)};
  if (const InputJson* parameters = find_set(*function, "parameters")) {
    if (!parameters->is_object()) return wrong(field + ".function.parameters", "expected a JSON schema");
    const std::string_view function_text = member_text(text, "function").value_or("");
    tool.parameters = member_text(function_text, "parameters").value_or(kNoParameters);
  }
  return tool;
}

std::optional<ApiError> read_list(const InputJson& list, std::string_view text, ToolRequest& request) {
  if (!list.is_array()) return wrong("tools", fmt::format("expected an array, got {}", list.type_name()));
  if (list.size() > kMaxTools) return wrong("tools", fmt::format("at most {} are accepted", kMaxTools));
  const std::vector<std::string_view> texts = element_texts(text);
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto tool = read_tool(list[i], texts.at(i), fmt::format("tools[{}]", i));
    if (auto* error = std::get_if<ApiError>(&tool)) return *error;
    request.tools.push_back(std::get<Tool>(std::move(tool)));
    const auto last = request.tools.end() - 1;
    if (std::any_of(request.tools.begin(), last, [&](const Tool& each) { return each.name == last->name; })) {
      return wrong("tools", fmt::format("two functions are named '{}'", last->name));
    }
  }
  if (!list.empty()) request.json = plain_spelling(text);
  return std::nullopt;
}

std::optional<ApiError> call_only(const std::string& name, ToolRequest& request) {
  std::erase_if(request.tools, [&](const Tool& tool) { return tool.name != name; });
  if (request.tools.empty()) return wrong("tool_choice", fmt::format("there is no tool named '{}'", name));
  request.use = ToolUse::kMustCall;
  return std::nullopt;
}

// A word, OpenAI's object, LoRAX's, or the name alone, which LoRAX takes as well.
std::optional<ApiError> read_choice(const InputJson* choice, ToolRequest& request) {
  if (choice == nullptr || *choice == "auto") {
    request.use = request.tools.empty() ? ToolUse::kNone : ToolUse::kMayCall;
    return std::nullopt;
  }
  if (*choice == "none") return std::nullopt;
  if (*choice == "required") {
    if (request.tools.empty()) return wrong("tool_choice", "`required` needs `tools`");
    request.use = ToolUse::kMustCall;
    return std::nullopt;
  }
  if (choice->is_string()) return call_only(choice->get<std::string>(), request);
  for (const char* key : {"function", "Function"}) {
    const InputJson* function = choice->is_object() ? find_set(*choice, key) : nullptr;
    const InputJson* name = function != nullptr && function->is_object() ? find_set(*function, "name") : nullptr;
    if (name != nullptr && name->is_string()) return call_only(name->get<std::string>(), request);
  }
  return wrong("tool_choice", "expected none, auto, required or an object that names a function");
}

// The schema's text ends in a brace.
std::string bounded(std::string_view schema) {
  const std::string_view body = schema.substr(0, schema.rfind('}'));
  const bool is_empty = body.find_first_not_of(" \t\r\n", 1) == std::string_view::npos;
  return fmt::format("{}{}{}}}", body, is_empty ? "" : ",", kBoundedWhitespace);
}

}  // namespace

Parsed<ToolRequest> read_tools(const InputJson& body, std::string_view text) {
  ToolRequest request;
  if (const InputJson* list = find_set(body, "tools")) {
    if (auto error = read_list(*list, member_text(text, "tools").value_or("[]"), request)) return *error;
  }
  if (auto error = read_choice(find_set(body, "tool_choice"), request)) return *error;
  if (const InputJson* prompt = find_set(body, "tool_prompt")) {
    if (!prompt->is_string()) return wrong("tool_prompt", "expected a string");
    request.prompt = prompt->get<std::string>();
  }
  return request;
}

std::string tool_grammar(const ToolRequest& request) {
  std::string starts = "start: call";
  std::string calls;
  std::string rules;
  for (std::size_t i = 0; i < request.tools.size(); ++i) {
    const Tool& tool = request.tools[i];
    calls += fmt::format("{}call_{}", i == 0 ? "" : " | ", i);
    rules += fmt::format("call_{0}: \"{{\\\"name\\\": \\\"{1}\\\", \\\"arguments\\\": \" arguments_{0} \"}}\"\n", i,
                         tool.name);
    rules += fmt::format("arguments_{}: %json {}\n", i, bounded(tool.parameters));
  }
  if (request.use == ToolUse::kMayCall) {
    starts += " | words";
    rules += "words: /[ \\n]?[^{ \\n\\t\\r](.|\\n)*/\n";
  }
  return fmt::format("{}\ncall: \" \"? ({})\n{}", starts, calls, rules);
}

std::string tool_instruction(const ToolRequest& request, bool template_lists) {
  if (request.use == ToolUse::kNone) return "";
  std::string text = template_lists ? "\n\n" : fmt::format("\n\nFunctions that can be called:\n{}\n\n", request.json);
  if (request.prompt) return text + *request.prompt;
  text +=
      "To call a function, answer with one JSON object and nothing else:\n"
      "{\"name\": \"the function's name\", \"arguments\": {its arguments}}\n";
  if (request.use == ToolUse::kMayCall) {
    text += "If no function helps with the question, answer it in plain words.";
  } else if (request.tools.size() == 1) {
    text += fmt::format("Call the function `{}`.", request.tools.front().name);
  } else {
    text += "Call the function that fits best.";
  }
  return text;
}

std::string call_text(const PastCall& call) {
  return fmt::format("{{\"name\": \"{}\", \"arguments\": {}}}", call.name, call.arguments);
}

}  // namespace shoal
