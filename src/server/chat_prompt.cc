#include "server/chat_prompt.h"

#include <fmt/format.h>

#include <utility>

#include "server/errors.h"
#include "server/validate.h"

namespace shoal {

namespace {

// `calls_as_text`: the template knows no calls, so they stand in the message as the model wrote them. Names of authors
// never reach the template.
std::string message_json(const ChatMessage& message, bool calls_as_text) {
  std::string content = message.content;
  std::string calls;
  for (const PastCall& call : message.calls) {
    if (calls_as_text) content += (content.empty() ? "" : "\n") + call_text(call);
    // The arguments as JSON, not as a text: templates write them with tojson.
    calls += fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                         calls.empty() ? "" : ",", to_text(OutputJson(call.id)), to_text(OutputJson(call.name)),
                         call.arguments);
  }
  std::string json =
      fmt::format(R"({{"role":{},"content":{})", to_text(OutputJson(message.role)), to_text(OutputJson(content)));
  if (!calls.empty() && !calls_as_text) json += fmt::format(R"(,"tool_calls":[{}])", calls);
  if (!message.tool_call_id.empty()) {
    json += fmt::format(R"(,"tool_call_id":{})", to_text(OutputJson(message.tool_call_id)));
  }
  return json + "}";
}

std::string messages_json(const std::vector<ChatMessage>& messages, bool calls_as_text) {
  std::string json = "[";
  for (const ChatMessage& message : messages) {
    json += (json.size() == 1 ? "" : ",") + message_json(message, calls_as_text);
  }
  return json + "]";
}

Parsed<RenderedPrompt> render(const Texts& texts, std::vector<ChatMessage> messages,
                              const std::optional<std::string>& guideline, const ToolRequest& tools) {
  if (messages.empty()) {
    return ApiError{.failure = Failure::kValidation, .message = "`messages` must not be empty", .param = "messages"};
  }
  if (texts.chat_template() == nullptr) {
    return ApiError{.failure = Failure::kTemplate, .message = "the model has no chat template", .param = {}};
  }
  const ChatTemplate& chat_template = *texts.chat_template();
  ChatTemplateOptions options;
  if (!tools.json.empty()) options.tools_json = tools.json;
  if (guideline) options.extra_variables.emplace_back("guideline", to_text(OutputJson(*guideline)));
  if (!guideline && chat_template.uses("guideline", options)) {
    return ApiError{
        .failure = Failure::kMissingVariable, .message = "the template needs `guideline`", .param = "guideline"};
  }
  const bool knows_tools = chat_template.uses("tools", options);
  messages.back().content += tool_instruction(tools, knows_tools);
  auto rendered = chat_template.render_prompt(messages_json(messages, !knows_tools), options, texts.tokenizer());
  if (!rendered.ok()) return to_api_error(rendered.error());
  return std::move(rendered.value());
}

}  // namespace

// The template states its own special tokens: the tokenizer adds none, and those that a message spells stay text.
Parsed<ChatPrompt> chat_prompt(const Texts& texts, std::vector<ChatMessage> messages,
                               const std::optional<std::string>& guideline, const ToolRequest& tools) {
  auto rendered = render(texts, std::move(messages), guideline, tools);
  if (auto* fault = std::get_if<ApiError>(&rendered)) return *fault;
  const auto& prompt = std::get<RenderedPrompt>(rendered);
  auto ids = texts.tokenizer().encode(prompt.text, SpecialTokens::kNone, prompt.plain_ranges);
  if (!ids.ok()) return to_api_error(ids.error());
  return ChatPrompt{.ids = std::move(ids.value()), .characters = count_characters(prompt.text)};
}

}  // namespace shoal
