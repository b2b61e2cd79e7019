// POST /v1/completions.
#include "server/answer_grammar.h"
#include "server/openai_answer.h"

namespace shoal {

namespace {

// Token ids of the prompt, and its text where it has one.
Parsed<std::vector<std::int64_t>> completion_ids(const ServerContext& context, const CompletionRequest& request) {
  if (const auto* ids = std::get_if<std::vector<std::int64_t>>(&request.prompt)) return *ids;
  const auto& text = std::get<std::string>(request.prompt);
  if (text.empty()) {
    return ApiError{.failure = Failure::kValidation, .message = "`prompt` must not be empty", .param = "prompt"};
  }
  auto ids = context.services.tokenizer.encode(text, SpecialTokens::kAdd);
  if (!ids.ok()) return to_api_error(ids.error());
  return std::move(ids.value());
}

OpenAiForm completion_form(const std::string& echoed) {
  OpenAiForm form;
  form.chunk_object = "text_completion";
  form.whole = [echoed](const OpenAiHead& head, const FinishEvent& finish) {
    return completion_response(head, echoed + finish.generated_text, finish);
  };
  if (!echoed.empty()) {
    form.first_chunk = [echoed](const OpenAiHead& head) { return completion_chunk(head, echoed, nullptr); };
  }
  form.text_chunk = [](const OpenAiHead& head, const std::string& text) {
    return completion_chunk(head, text, nullptr);
  };
  form.last_chunk = [](const OpenAiHead& head, const char* reason) { return completion_chunk(head, "", reason); };
  return form;
}

}  // namespace

void handle_completions(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_completion(call.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& request = std::get<CompletionRequest>(parsed);
  if (const auto error = read_openai_grammar(call.body, call.request.body, request.parameters)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  select_model(context, request.model, request.parameters);
  auto prepared =
      prepare_generation(context, call, request.parameters, [&] { return completion_ids(context, request); });
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  const auto* text = std::get_if<std::string>(&request.prompt);
  const bool echo = request.parameters.return_full_text.value_or(false);
  std::string echoed;
  if (echo)
    echoed = text != nullptr ? *text : context.services.tokenizer.decode(ready.request.prompt_ids, SkipSpecial::kNo);
  if (text != nullptr) ready.info.prompt_characters = count_characters(*text);
  answer_openai(context, call.writer, std::move(ready), make_head(context, "cmpl-", request.model),
                completion_form(echoed), {.stream = request.stream, .include_usage = request.include_usage});
}

}  // namespace shoal
