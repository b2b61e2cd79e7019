// POST /v1/completions.
#include <fmt/format.h>

#include <algorithm>

#include "server/answer_grammar.h"
#include "server/fill_in_middle.h"
#include "server/openai_answer.h"
#include "server/prompts.h"

namespace shoal {

namespace {

// Token ids of a prompt, with the suffix where there is one: its markers stand in place of special tokens.
Parsed<std::vector<std::int64_t>> completion_ids(const Tokenizer& tokenizer, const CompletionPrompt& prompt,
                                                 const std::string& suffix) {
  if (!suffix.empty()) {
    auto prefix = prompt_ids(tokenizer, prompt, SpecialTokens::kNone);
    if (std::holds_alternative<ApiError>(prefix)) return prefix;
    return middle_prompt(tokenizer, std::get<std::vector<std::int64_t>>(prefix), suffix);
  }
  const auto* text = std::get_if<std::string>(&prompt);
  if (text != nullptr && text->empty()) {
    return ApiError{.failure = Failure::kValidation, .message = "`prompt` must not be empty", .param = "prompt"};
  }
  return prompt_ids(tokenizer, prompt, SpecialTokens::kAdd);
}

OpenAiForm completion_form() {
  OpenAiForm form;
  form.chunk_object = "text_completion";
  form.whole = [](const OpenAiHead& head, const std::string& echoed, const FinishEvent& finish) {
    return completion_response(head, echoed + finish.generated_text, finish);
  };
  form.first_chunk = [](const OpenAiHead& head, const std::string& echoed) {
    return echoed.empty() ? OutputJson() : completion_chunk(head, echoed, nullptr);
  };
  form.text_chunk = [](const OpenAiHead& head, const std::string& text) {
    return completion_chunk(head, text, nullptr);
  };
  form.last_chunk = [](const OpenAiHead& head, const char* reason) { return completion_chunk(head, "", reason); };
  return form;
}

// Before anything is made for each of them.
std::optional<ApiError> check_num_answers(const CompletionRequest& request) {
  constexpr std::int64_t kMostAnswers = 1024;
  const GenerateParameters& parameters = request.parameters;
  const std::int64_t candidates = std::max(parameters.num_choices.value_or(1), parameters.num_candidates.value_or(1));
  const std::int64_t num_answers = std::ssize(request.prompts) * std::max<std::int64_t>(candidates, 1);
  if (num_answers <= kMostAnswers) return std::nullopt;
  return ApiError{.failure = Failure::kValidation,
                  .message = fmt::format("`prompt` asks for too many answers: {} prompts, {} answers each; at most {} "
                                         "in a request",
                                         request.prompts.size(), candidates, kMostAnswers),
                  .param = "prompt"};
}

Parsed<std::vector<OpenAiPrompt>> prepare_completion(ServerContext& context, const JsonCall& call,
                                                     const CompletionRequest& request) {
  std::vector<Tokenize> tokenize;
  tokenize.reserve(request.prompts.size());
  for (const CompletionPrompt& prompt : request.prompts) {
    tokenize.emplace_back(
        [&prompt, &request](const Texts& texts) { return completion_ids(texts.tokenizer(), prompt, request.suffix); });
  }
  auto prepared = prepare_prompts(context, call, request.parameters, tokenize);
  if (auto* error = std::get_if<ApiError>(&prepared)) return std::move(*error);
  std::vector<OpenAiPrompt> prompts;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    OpenAiPrompt prompt{.prepared = std::move(std::get<std::vector<PreparedRequest>>(prepared)[i])};
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    if (text != nullptr) prompt.prepared.info.prompt_characters = count_characters(*text);
    if (request.parameters.return_full_text.value_or(false)) {
      // With a suffix too: the prompt alone, as it was sent.
      prompt.echoed = text != nullptr ? *text
                                      : prompt.prepared.info.texts->tokenizer().decode(
                                            std::get<std::vector<std::int64_t>>(request.prompts[i]), SkipSpecial::kNo);
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

void handle_completions(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_completion(call.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& request = std::get<CompletionRequest>(parsed);
  auto fault = check_num_answers(request);
  if (!fault) fault = read_openai_grammar(call.body, call.request.body, request.parameters);
  if (!fault) fault = select_model(context, request.model, request.parameters);
  if (fault) {
    refuse(context, call.writer, *fault, ApiStyle::kOpenAi);
    return;
  }
  auto prepared = prepare_completion(context, call, request);
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  OpenAiDelivery delivery{.stream = request.stream,
                          .include_usage = request.include_usage,
                          .logprobs_form = LogprobsForm::kCompletion,
                          .logprobs = request.parameters.logprobs,
                          .prompt_logprobs = request.parameters.prompt_logprobs,
                          .echo = request.parameters.return_full_text.value_or(false),
                          .prompt_only = request.prompt_only};
  if (const auto error = choose_counts(request.parameters, delivery)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  answer_openai(context, call.writer, std::move(std::get<std::vector<OpenAiPrompt>>(prepared)),
                make_head(context, "cmpl-", request.model), completion_form, delivery);
}

}  // namespace shoal
