#include "server/openai_answer.h"

#include <fmt/format.h>

namespace shoal {

namespace {

// One answer on its way out.
struct AnswerState {
  AnswerState(ServerContext& server_context, ResponseWriter response_writer, GenerationInfo request_info)
      : context(server_context), writer(std::move(response_writer)), info(std::move(request_info)) {}

  // Scores of a token, and of the prompt before the first. `begin_text`: what is to be written between the two.
  void add_scores(const TokenEvent& token, const std::function<void()>& begin_text) {
    if (!token.prompt_scores.empty()) prompt_scores = token.prompt_scores;
    if (scores && delivery.echo && !begun) scores->add_prompt(info.prompt_ids, token.prompt_scores);
    begin_text();
    if (scores && !delivery.prompt_only) scores->add(token);
  }

  ServerContext& context;
  const ResponseWriter writer;
  const GenerationInfo info;
  OpenAiHead head;
  OpenAiForm form;
  OpenAiDelivery delivery;
  std::optional<AnswerScores> scores;     // none: no logprobs
  std::vector<TokenScore> prompt_scores;  // empty where none were asked for
  bool begun = false;                     // the first token was seen
};

FinishEvent without_answer(FinishEvent finish) {
  finish.generated_text.clear();
  finish.tail.clear();
  finish.generated_tokens = 0;
  finish.reason = FinishReason::kLength;
  return finish;
}

void send_whole(AnswerState& state, const FinishEvent& finish) {
  OutputJson json = state.form.whole(state.head, finish);
  OutputJson& choice = json["choices"][0];
  if (state.scores) choice["logprobs"] = state.scores->take();
  if (state.delivery.prompt_logprobs) {
    const bool in_choice = state.delivery.logprobs_form == LogprobsForm::kCompletion;
    (in_choice ? choice : json)["prompt_logprobs"] = prompt_logprobs_json(
        state.context.services.tokenizer, state.info.prompt_ids, state.prompt_scores, *state.delivery.prompt_logprobs);
  }
  state.writer.send(200, answer_headers(state.context, state.info, finish), to_text(json));
}

GenerationSink whole_sink(const std::shared_ptr<AnswerState>& state) {
  GenerationSink sink;
  sink.on_token = [state](const TokenEvent& token) { state->add_scores(token, [state] { state->begun = true; }); };
  sink.on_finish = [state](const FinishEvent& finish) {
    send_whole(*state, state->delivery.prompt_only ? without_answer(finish) : finish);
  };
  sink.on_error = [state](const ApiError& error) { send_error(state->writer, error, ApiStyle::kOpenAi); };
  return sink;
}

void write_chunk(AnswerState& state, OutputJson chunk) {
  if (state.scores) chunk["choices"][0]["logprobs"] = state.scores->take();
  state.writer.write(to_event(chunk));
}

void begin_stream(AnswerState& state) {
  if (state.begun) return;
  state.begun = true;
  state.writer.begin_stream(stream_headers(state.context, state.info));
  if (!state.form.first_chunk) return;
  OutputJson chunk = state.form.first_chunk(state.head);
  if (state.delivery.echo) {
    write_chunk(state, std::move(chunk));
  } else {
    state.writer.write(to_event(chunk));
  }
}

void finish_stream(AnswerState& state, const FinishEvent& event) {
  if (!event.tail.empty()) state.writer.write(to_event(state.form.text_chunk(state.head, event.tail)));
  OutputJson last = state.form.last_chunk(state.head, openai_finish_reason(event.reason));
  // LoRAX's clients read usage from the last chunk; OpenAI's ask for one of its own.
  if (!state.delivery.include_usage) last["usage"] = openai_usage(event);
  state.writer.write(to_event(last));
  if (state.delivery.include_usage) {
    state.writer.write(to_event(usage_chunk(state.head, state.form.chunk_object, event)));
  }
  state.writer.write("data: [DONE]\n\n");
  state.writer.end();
}

GenerationSink stream_sink(const std::shared_ptr<AnswerState>& state) {
  GenerationSink sink;
  sink.on_token = [state](const TokenEvent& token) {
    state->add_scores(token, [state] { begin_stream(*state); });
    if (state->delivery.prompt_only) return;
    // With logprobs each token has a chunk, since they belong to it.
    if (state->scores || !token.delta.empty()) write_chunk(*state, state->form.text_chunk(state->head, token.delta));
  };
  sink.on_finish = [state](const FinishEvent& event) {
    begin_stream(*state);
    finish_stream(*state, state->delivery.prompt_only ? without_answer(event) : event);
  };
  sink.on_error = [state](const ApiError& error) {
    if (!state->begun) {
      send_error(state->writer, error, ApiStyle::kOpenAi);
      return;
    }
    state->writer.write(error_event(error, ApiStyle::kOpenAi));
    state->writer.end();
  };
  return sink;
}

}  // namespace

void select_model(const ServerContext& context, const std::string& model, GenerateParameters& parameters) {
  parameters.adapter_id = model == context.services.model_id ? std::string() : model;
}

OpenAiHead make_head(const ServerContext& context, const char* id_prefix, const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = fmt::format("{}{:016x}{:08x}", id_prefix, random_u64(), static_cast<std::uint32_t>(random_u64())),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model.empty() ? context.services.model_id : model};
}

void answer_openai(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared, OpenAiHead head,
                   OpenAiForm form, OpenAiDelivery delivery) {
  const auto state = std::make_shared<AnswerState>(context, writer, prepared.info);
  state->head = std::move(head);
  state->form = std::move(form);
  state->delivery = delivery;
  if (delivery.logprobs) {
    state->scores.emplace(context.services.tokenizer, delivery.logprobs_form, *delivery.logprobs);
  }
  start_generation(context, writer, std::move(prepared), delivery.stream ? stream_sink(state) : whole_sink(state));
}

}  // namespace shoal
