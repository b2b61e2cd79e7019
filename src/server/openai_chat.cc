// POST /v1/chat/completions.
#include "server/answer_grammar.h"
#include "server/openai_answer.h"

namespace shoal {

namespace {

// Roles and contents alone: names and past tool calls never reach the template.
std::string messages_json(const std::vector<ChatMessage>& messages) {
  OutputJson list = OutputJson::array();
  for (const ChatMessage& message : messages) {
    OutputJson json;
    json["role"] = message.role;
    json["content"] = message.content;
    list.push_back(std::move(json));
  }
  return to_text(list);
}

Parsed<RenderedPrompt> render_chat(const ServerContext& context, const ChatRequest& request) {
  if (request.messages.empty()) {
    return ApiError{.failure = Failure::kValidation, .message = "`messages` must not be empty", .param = "messages"};
  }
  if (context.services.chat_template == nullptr) {
    return ApiError{.failure = Failure::kTemplate, .message = "the model has no chat template", .param = {}};
  }
  const ChatTemplate& chat_template = *context.services.chat_template;
  ChatTemplateOptions options;
  if (request.guideline) options.extra_variables.emplace_back("guideline", to_text(OutputJson(*request.guideline)));
  if (!request.guideline && chat_template.uses("guideline", options)) {
    return ApiError{.failure = Failure::kTemplate, .message = "the template needs `guideline`", .param = "guideline"};
  }
  auto rendered = chat_template.render_prompt(messages_json(request.messages), options, context.services.tokenizer);
  if (!rendered.ok()) return to_api_error(rendered.error());
  return std::move(rendered.value());
}

OpenAiForm chat_form(std::string fingerprint) {
  OpenAiForm form;
  form.chunk_object = "chat.completion.chunk";
  form.whole = [fingerprint = std::move(fingerprint)](const OpenAiHead& head, const FinishEvent& finish) {
    return chat_response(head, fingerprint, finish);
  };
  form.first_chunk = [](const OpenAiHead& head) {
    OutputJson delta;
    delta["role"] = "assistant";
    delta["content"] = "";
    return chat_chunk(head, std::move(delta), nullptr);
  };
  form.text_chunk = [](const OpenAiHead& head, const std::string& text) {
    OutputJson delta;
    delta["content"] = text;
    return chat_chunk(head, std::move(delta), nullptr);
  };
  form.last_chunk = [](const OpenAiHead& head, const char* reason) {
    return chat_chunk(head, OutputJson::object(), reason);
  };
  return form;
}

}  // namespace

void handle_chat(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_chat(call.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& request = std::get<ChatRequest>(parsed);
  if (const auto error = read_openai_grammar(call.body, call.request.body, request.parameters)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  select_model(context, request.model, request.parameters);
  std::int64_t prompt_characters = 0;
  // The template states its own special tokens: the tokenizer adds none, and those that a message spells stay text.
  auto prepared = prepare_generation(context, call, request.parameters, [&]() -> Parsed<std::vector<std::int64_t>> {
    auto rendered = render_chat(context, request);
    if (auto* error = std::get_if<ApiError>(&rendered)) return *error;
    const auto& prompt = std::get<RenderedPrompt>(rendered);
    prompt_characters = count_characters(prompt.text);
    auto ids = context.services.tokenizer.encode(prompt.text, SpecialTokens::kNone, prompt.plain_ranges);
    if (!ids.ok()) return to_api_error(ids.error());
    return std::move(ids.value());
  });
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  ready.info.prompt_characters = prompt_characters;
  answer_openai(context, call.writer, std::move(ready), make_head(context, "chatcmpl-", request.model),
                chat_form(context.options.version + "-native"),
                {.stream = request.stream, .include_usage = request.include_usage});
}

}  // namespace shoal
