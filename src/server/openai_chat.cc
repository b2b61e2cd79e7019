// POST /v1/chat/completions.
#include <fmt/format.h>

#include "server/answer_grammar.h"
#include "server/chat_prompt.h"
#include "server/openai_answer.h"
#include "server/tool_call_reader.h"
#include "server/tools.h"

namespace shoal {

namespace {

OutputJson call_json(const ToolCallReader::Piece& piece, const std::string& id) {
  OutputJson call;
  if (piece.begins_call) call["id"] = id;
  if (piece.begins_call) call["type"] = "function";
  if (piece.begins_call) call["function"]["name"] = piece.name;
  call["function"]["arguments"] = piece.arguments;
  return call;
}

const char* reason_of(const ToolCallReader& reader, const char* reason) {
  return reader.has_call() && std::string_view(reason) == "stop" ? "tool_calls" : reason;
}

OutputJson with_call(OutputJson answer, const std::string& text, const std::string& id) {
  ToolCallReader reader;
  ToolCallReader::Piece call = reader.push(text);
  const ToolCallReader::Piece rest = reader.finish();
  if (!reader.has_call()) return answer;
  call.arguments += rest.arguments;
  OutputJson& choice = answer["choices"][0];
  choice["message"]["content"] = nullptr;
  choice["message"]["tool_calls"] = OutputJson::array({call_json(call, id)});
  choice["finish_reason"] = reason_of(reader, choice["finish_reason"].get_ref<const std::string&>().c_str());
  return answer;
}

// A piece of the answer, whichever of the two it is.
OutputJson delta_of(const ToolCallReader::Piece& piece, const std::string& id) {
  OutputJson delta = OutputJson::object();
  if (!piece.content.empty()) delta["content"] = piece.content;
  if (!piece.begins_call && piece.arguments.empty()) return delta;
  OutputJson call;
  call["index"] = 0;
  call.update(call_json(piece, id));
  delta["tool_calls"] = OutputJson::array({std::move(call)});
  return delta;
}

OpenAiForm chat_form(std::string fingerprint) {
  OpenAiForm form;
  form.chunk_object = "chat.completion.chunk";
  form.whole = [fingerprint = std::move(fingerprint)](const OpenAiHead& head, const std::string&,
                                                      const FinishEvent& finish) {
    return chat_response(head, fingerprint, finish);
  };
  form.first_chunk = [](const OpenAiHead& head, const std::string&) {
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

// An answer that may be a call.
OpenAiForm tool_form(OpenAiForm form) {
  const std::string id = fmt::format("call_{:016x}", random_u64());
  form.whole = [whole = form.whole, id](const OpenAiHead& head, const std::string& echoed, const FinishEvent& finish) {
    return with_call(whole(head, echoed, finish), finish.generated_text, id);
  };
  const auto reader = std::make_shared<ToolCallReader>();  // shared by the two functions of one stream
  form.text_chunk = [reader, id](const OpenAiHead& head, const std::string& text) {
    return chat_chunk(head, delta_of(reader->push(text), id), nullptr);
  };
  form.last_chunk = [reader, id](const OpenAiHead& head, const char* reason) {
    OutputJson delta = delta_of(reader->finish(), id);
    return chat_chunk(head, std::move(delta), reason_of(*reader, reason));
  };
  return form;
}

std::optional<ApiError> add_tools(ChatRequest& request, const ToolRequest& tools) {
  if (tools.use == ToolUse::kNone) return std::nullopt;
  if (request.parameters.grammar) {
    const std::string& field = request.parameters.grammar->field;
    return ApiError{.failure = Failure::kValidation,
                    .message = fmt::format("`{}` cannot stand beside `tools`", field),
                    .param = field};
  }
  request.parameters.grammar =
      AnswerGrammar{.spec = {.kind = GrammarKind::kLark, .text = tool_grammar(tools)}, .field = "tools"};
  return std::nullopt;
}

}  // namespace

void handle_chat(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_chat(call.body);
  if (const auto* fault = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *fault, ApiStyle::kOpenAi);
    return;
  }
  auto& request = std::get<ChatRequest>(parsed);
  auto error = read_openai_grammar(call.body, call.request.body, request.parameters);
  auto read = read_tools(call.body, call.request.body);
  if (!error && std::holds_alternative<ApiError>(read)) error = std::get<ApiError>(read);
  if (!error) error = add_tools(request, std::get<ToolRequest>(read));
  if (!error) error = select_model(context, request.model, request.parameters);
  if (error) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  const auto& tools = std::get<ToolRequest>(read);
  std::int64_t prompt_characters = 0;
  auto prepared = prepare_generation(context, call, request.parameters,
                                     [&](const Texts& texts) -> Parsed<std::vector<std::int64_t>> {
                                       auto prompt = chat_prompt(texts, request.messages, request.guideline, tools);
                                       if (auto* fault = std::get_if<ApiError>(&prompt)) return *fault;
                                       prompt_characters = std::get<ChatPrompt>(prompt).characters;
                                       return std::move(std::get<ChatPrompt>(prompt).ids);
                                     });
  if (const auto* refusal = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *refusal, ApiStyle::kOpenAi);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  ready.info.prompt_characters = prompt_characters;
  const bool has_tools = tools.use != ToolUse::kNone;
  const auto make_form = [fingerprint = context.options.version + "-native", has_tools] {
    OpenAiForm form = chat_form(fingerprint);
    return has_tools ? tool_form(std::move(form)) : form;
  };
  OpenAiDelivery delivery{.stream = request.stream,
                          .include_usage = request.include_usage,
                          .logprobs_form = LogprobsForm::kChat,
                          .logprobs = request.parameters.logprobs,
                          .prompt_logprobs = request.parameters.prompt_logprobs};
  if (const auto refusal = choose_counts(request.parameters, delivery)) {
    refuse(context, call.writer, *refusal, ApiStyle::kOpenAi);
    return;
  }
  std::vector<OpenAiPrompt> prompts;
  prompts.push_back({.prepared = std::move(ready)});
  answer_openai(context, call.writer, std::move(prompts), make_head(context, "chatcmpl-", request.model), make_form,
                delivery);
}

}  // namespace shoal
