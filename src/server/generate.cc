// The native routes: /generate, /generate_stream, and / with both forms.
#include <algorithm>
#include <span>

#include "server/answer_grammar.h"
#include "server/answer_scores.h"
#include "server/chat_prompt.h"
#include "server/context.h"
#include "server/generation_group.h"
#include "server/responses.h"

namespace shoal {

namespace {

enum class AnswerForm : std::uint8_t { kObject, kArrayOfOne };

// With `apply_chat_template` the inputs are what a user says in a chat.
Parsed<ChatPrompt> native_prompt(const Texts& texts, const NativeRequest& native) {
  if (native.inputs.empty()) {
    return ApiError{.failure = Failure::kValidation, .message = "`inputs` must not be empty", .param = "inputs"};
  }
  if (native.parameters.apply_chat_template) {
    return chat_prompt(texts, {{.role = "user", .content = native.inputs}});
  }
  auto ids = texts.tokenizer().encode(native.inputs, SpecialTokens::kAdd);
  if (!ids.ok()) return to_api_error(ids.error());
  return ChatPrompt{.ids = std::move(ids.value()), .characters = count_characters(native.inputs)};
}

Parsed<PreparedRequest> prepare_native(ServerContext& context, const JsonCall& call, const NativeRequest& native) {
  std::int64_t characters = 0;
  auto prepared = prepare_generation(context, call, native.parameters,
                                     [&](const Texts& texts) -> Parsed<std::vector<std::int64_t>> {
                                       auto prompt = native_prompt(texts, native);
                                       if (auto* fault = std::get_if<ApiError>(&prompt)) return *fault;
                                       characters = std::get<ChatPrompt>(prompt).characters;
                                       return std::move(std::get<ChatPrompt>(prompt).ids);
                                     });
  if (auto* ready = std::get_if<PreparedRequest>(&prepared)) ready->info.prompt_characters = characters;
  return prepared;
}

// What one answer collects.
struct NativeState {
  NativeRequest native;
  GenerationInfo info;
  std::vector<TokenEvent> tokens;  // of a stream: the last, until its finish event
  NativeExtras extras;
  std::string full_text(const FinishEvent& finish) const {
    return native.parameters.return_full_text.value_or(false) ? native.inputs + finish.generated_text
                                                              : finish.generated_text;
  }
};

NativeExtras extras_of(const GenerationInfo& info, const GenerateParameters& parameters) {
  return {.tokenizer = &info.texts->tokenizer(),
          .alternatives = parameters.return_k_alternatives.value_or(0),
          .top_tokens = parameters.top_n_tokens.value_or(0)};
}

// A whole answer, or several of which the best is given.
struct WholeState {
  struct Part {
    std::vector<TokenEvent> tokens;  // with details
    MeanLogprob mean;
    FinishEvent finish;
  };

  std::optional<std::uint64_t> seed_of(std::size_t part) const {
    return answer.info.seed ? std::optional(*answer.info.seed + part) : std::nullopt;
  }

  std::vector<std::size_t> best_first() const {
    std::vector<MeanLogprob> means(parts.size());
    std::transform(parts.begin(), parts.end(), means.begin(), [](const Part& part) { return part.mean; });
    return by_mean_logprob(means, 0, parts.size());
  }

  OutputJson to_json() const {
    const std::vector<std::size_t> order = best_first();
    const Part& best = parts[order.front()];
    OutputJson json = native_response(answer.full_text(best.finish), best.finish, seed_of(order.front()),
                                      details ? &best.tokens : nullptr, answer.extras);
    if (!details || order.size() == 1) return json;
    OutputJson others = OutputJson::array();
    for (const std::size_t i : std::span(order).subspan(1)) {
      others.push_back(
          native_other(answer.full_text(parts[i].finish), parts[i].finish, seed_of(i), parts[i].tokens, answer.extras));
    }
    json["details"]["best_of_sequences"] = std::move(others);
    return json;
  }

  // The best one's.
  const FinishEvent& finish() const { return parts[best_first().front()].finish; }

  NativeState answer;
  bool details = false;
  std::vector<Part> parts;
  std::size_t num_finished = 0;
};

void answer_whole(ServerContext& context, const JsonCall& call, NativeRequest native, AnswerForm form) {
  auto prepared = prepare_native(context, call, native);
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, ApiStyle::kNative);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  const auto state = std::make_shared<WholeState>();
  state->answer.native = std::move(native);
  state->answer.info = ready.info;
  const GenerateParameters& parameters = state->answer.native.parameters;
  state->answer.extras = extras_of(ready.info, parameters);
  state->details = parameters.details || parameters.decoder_input_details;
  if (parameters.decoder_input_details) {
    state->answer.extras.prefill = native_prefill(ready.info.texts->tokenizer(), state->answer.info.prompt_ids, {});
  }
  state->parts.resize(parameters.best_of.value_or(1));
  const ResponseWriter writer = call.writer;
  GroupSink sink;
  sink.on_token = [state](std::size_t part, const TokenEvent& token) {
    if (!token.prompt_scores.empty()) {
      state->answer.extras.prefill =
          native_prefill(*state->answer.extras.tokenizer, state->answer.info.prompt_ids, token.prompt_scores);
    }
    state->parts[part].mean.add(token.logprob);
    if (state->details) state->parts[part].tokens.push_back(token);
  };
  sink.on_finish = [&context, state, writer, form](std::size_t part, const FinishEvent& finish) {
    state->parts[part].finish = finish;
    if (++state->num_finished < state->parts.size()) return;
    OutputJson json = state->to_json();
    if (form == AnswerForm::kArrayOfOne) json = OutputJson::array({std::move(json)});
    writer.send(200, answer_headers(context, state->answer.info, state->finish()), to_text(json));
  };
  sink.on_error = [writer](const ApiError& error) { send_error(writer, error, ApiStyle::kNative); };
  std::vector<PreparedRequest> requests;
  requests.push_back(std::move(ready));
  start_group(context, writer, std::move(requests), state->parts.size(), std::move(sink));
}

void end_with_error(const ResponseWriter& writer, const ApiError& error) {
  writer.note("error", std::string(failure_row(error.failure).error_code));
  writer.write(error_event(error, ApiStyle::kNative));
  writer.end();
}

// LoRAX's streams answer 200 as soon as the body is well formed; what comes later is an event.
void answer_stream(ServerContext& context, const JsonCall& call, NativeRequest native) {
  auto prepared = prepare_native(context, call, native);
  const bool chooses = native.parameters.best_of.value_or(1) > 1;
  if ((chooses || native.parameters.decoder_input_details) && std::holds_alternative<PreparedRequest>(prepared)) {
    const std::string field = chooses ? "best_of" : "decoder_input_details";
    prepared = ApiError{
        .failure = Failure::kValidation, .message = "`" + field + "` is not possible in a stream", .param = field};
  }
  const ResponseWriter writer = call.writer;
  const auto* refusal = std::get_if<ApiError>(&prepared);
  if (refusal != nullptr && refusal->failure == Failure::kUnavailable) {
    // A load balancer moves on at a status, not at an event.
    refuse(context, writer, *refusal, ApiStyle::kNative);
    return;
  }
  if (refusal != nullptr) {
    context.metrics.count_failure(failure_row(refusal->failure).metric);
    writer.begin_stream(stream_headers(context, GenerationInfo()));
    end_with_error(writer, *refusal);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  const auto state = std::make_shared<NativeState>();
  state->native = std::move(native);
  state->info = ready.info;
  state->extras = extras_of(state->info, state->native.parameters);
  writer.begin_stream(stream_headers(context, state->info));
  GenerationSink sink;
  sink.on_token = [state, writer](const TokenEvent& token) {
    if (token.last) {
      state->tokens.push_back(token);
    } else {
      writer.write(to_event(native_stream_token(token, state->extras)));
    }
  };
  sink.on_finish = [state, writer](const FinishEvent& finish) {
    if (state->tokens.empty()) {
      end_with_error(writer, {.failure = Failure::kIncomplete, .message = "the last token is missing", .param = {}});
      return;
    }
    const std::string text = state->full_text(finish);
    const NativeSummary summary = {.generated_text = text,
                                   .finish = finish,
                                   .seed = state->info.seed,
                                   .details = state->native.parameters.details};
    writer.write(to_event(native_stream_last(state->tokens.front(), summary, state->extras)));
    writer.end();
  };
  sink.on_error = [writer](const ApiError& error) { end_with_error(writer, error); };
  start_generation(context, writer, std::move(ready), std::move(sink));
}

std::optional<NativeRequest> parse_or_refuse(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_native(call.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kNative);
    return std::nullopt;
  }
  auto& native = std::get<NativeRequest>(parsed);
  if (const auto error = read_native_grammar(call.body, call.request.body, native.parameters)) {
    refuse(context, call.writer, *error, ApiStyle::kNative);
    return std::nullopt;
  }
  return std::move(native);
}

}  // namespace

void handle_generate(ServerContext& context, const JsonCall& call) {
  if (auto native = parse_or_refuse(context, call)) {
    answer_whole(context, call, *std::move(native), AnswerForm::kObject);
  }
}

void handle_generate_stream(ServerContext& context, const JsonCall& call) {
  if (auto native = parse_or_refuse(context, call)) answer_stream(context, call, *std::move(native));
}

void handle_compat_generate(ServerContext& context, const JsonCall& call) {
  auto native = parse_or_refuse(context, call);
  if (!native) return;
  if (native->stream) {
    answer_stream(context, call, *std::move(native));
  } else {
    answer_whole(context, call, *std::move(native), AnswerForm::kArrayOfOne);
  }
}

}  // namespace shoal
