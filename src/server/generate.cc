// The native routes: /generate, /generate_stream, and / with both forms.
#include "server/answer_grammar.h"
#include "server/context.h"
#include "server/generation.h"
#include "server/responses.h"

namespace shoal {

namespace {

enum class AnswerForm : std::uint8_t { kObject, kArrayOfOne };

Parsed<PreparedRequest> prepare_native(ServerContext& context, const JsonCall& call, const NativeRequest& native) {
  auto prepared = prepare_generation(context, call, native.parameters, [&]() -> Parsed<std::vector<std::int64_t>> {
    if (native.inputs.empty()) {
      return ApiError{.failure = Failure::kValidation, .message = "`inputs` must not be empty", .param = "inputs"};
    }
    auto ids = context.services.tokenizer.encode(native.inputs, SpecialTokens::kAdd);
    if (!ids.ok()) return to_api_error(ids.error());
    return std::move(ids.value());
  });
  if (auto* ready = std::get_if<PreparedRequest>(&prepared)) {
    ready->info.prompt_characters = count_characters(native.inputs);
  }
  return prepared;
}

// What one answer collects.
struct NativeState {
  NativeRequest native;
  GenerationInfo info;
  std::vector<TokenEvent> tokens;  // whole answers with details: all; streams: the last, until its finish event
  std::string full_text(const FinishEvent& finish) const {
    return native.parameters.return_full_text.value_or(false) ? native.inputs + finish.generated_text
                                                              : finish.generated_text;
  }
};

void answer_whole(ServerContext& context, const JsonCall& call, NativeRequest native, AnswerForm form) {
  auto prepared = prepare_native(context, call, native);
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, ApiStyle::kNative);
    return;
  }
  auto& ready = std::get<PreparedRequest>(prepared);
  const auto state = std::make_shared<NativeState>();
  state->native = std::move(native);
  state->info = ready.info;
  const bool details = state->native.parameters.details;
  const ResponseWriter writer = call.writer;
  GenerationSink sink;
  sink.on_token = [state, details](const TokenEvent& token) {
    if (details) state->tokens.push_back(token);
  };
  sink.on_finish = [&context, state, details, writer, form](const FinishEvent& finish) {
    OutputJson json =
        native_response(state->full_text(finish), finish, state->info.seed, details ? &state->tokens : nullptr);
    if (form == AnswerForm::kArrayOfOne) json = OutputJson::array({std::move(json)});
    writer.send(200, answer_headers(context, state->info, finish), to_text(json));
  };
  sink.on_error = [writer](const ApiError& error) { send_error(writer, error, ApiStyle::kNative); };
  start_generation(context, writer, std::move(ready), std::move(sink));
}

void end_with_error(const ResponseWriter& writer, const ApiError& error) {
  writer.write(error_event(error, ApiStyle::kNative));
  writer.end();
}

// LoRAX's streams answer 200 as soon as the body is well formed; what comes later is an event.
void answer_stream(ServerContext& context, const JsonCall& call, NativeRequest native) {
  auto prepared = prepare_native(context, call, native);
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
  writer.begin_stream(stream_headers(context, state->info));
  GenerationSink sink;
  sink.on_token = [state, writer](const TokenEvent& token) {
    if (token.last) {
      state->tokens.push_back(token);
    } else {
      writer.write(to_event(native_stream_token(token)));
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
    writer.write(to_event(native_stream_last(state->tokens.front(), summary)));
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
