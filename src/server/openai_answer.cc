#include "server/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/generation_group.h"

namespace shoal {

namespace {

// One of the answers: part of the group.
struct PartState {
  OpenAiForm form;
  std::optional<AnswerScores> scores;  // none: no logprobs
  bool begun = false;                  // the first token was seen
  MeanLogprob mean = {};
  std::optional<FinishEvent> finish = {};
};

struct PromptState {
  GenerationInfo info;
  std::string echoed;
  std::vector<TokenScore> scores = {};  // empty where none were asked for
};

// All answers of one call on their way out.
struct AnswerState {
  AnswerState(ServerContext& server_context, ResponseWriter response_writer)
      : context(server_context), writer(std::move(response_writer)) {}

  PromptState& prompt_of(std::size_t part) { return prompts[part / delivery.num_candidates]; }
  bool all_finished() const {
    return std::all_of(parts.begin(), parts.end(), [](const PartState& part) { return part.finish.has_value(); });
  }

  // Scores of a token, and of the prompt before the first. `begin_text`: what is to be written between the two.
  void add_scores(std::size_t index, const TokenEvent& token, const std::function<void()>& begin_text) {
    PartState& part = parts[index];
    PromptState& prompt = prompt_of(index);
    if (!token.prompt_scores.empty()) prompt.scores = token.prompt_scores;
    if (part.scores && delivery.echo && !part.begun) part.scores->add_prompt(prompt.info.prompt_ids, prompt.scores);
    begin_text();
    if (part.scores && !delivery.prompt_only) part.scores->add(token);
    part.mean.add(token.logprob);
  }

  ServerContext& context;
  const ResponseWriter writer;
  OpenAiHead head;
  OpenAiDelivery delivery;
  std::vector<PromptState> prompts;
  std::vector<PartState> parts;  // num_candidates for each prompt
  bool begun = false;            // a stream
};

FinishEvent without_answer(FinishEvent finish) {
  finish.generated_text.clear();
  finish.tail.clear();
  finish.generated_tokens = 0;
  finish.reason = FinishReason::kLength;
  return finish;
}

FinishEvent sum_of(const AnswerState& state) {
  std::vector<FinishEvent> finishes;
  finishes.reserve(state.parts.size());
  for (const PartState& part : state.parts) finishes.push_back(*part.finish);
  return sum_of_parts(finishes, state.delivery.num_candidates);
}

// The parts whose answers are given, in order.
std::vector<std::size_t> chosen_parts(const AnswerState& state) {
  const std::size_t candidates = state.delivery.num_candidates;
  std::vector<MeanLogprob> means;
  means.reserve(state.parts.size());
  for (const PartState& part : state.parts) means.push_back(part.mean);
  std::vector<std::size_t> chosen;
  for (std::size_t begin = 0; begin < state.parts.size(); begin += candidates) {
    std::vector<std::size_t> order = by_mean_logprob(means, begin, begin + candidates);
    if (state.delivery.num_choices == candidates) std::sort(order.begin(), order.end());
    chosen.insert(chosen.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(state.delivery.num_choices));
  }
  return chosen;
}

void send_whole(AnswerState& state) {
  const FinishEvent sum = sum_of(state);
  OutputJson json;
  OutputJson choices = OutputJson::array();
  for (const std::size_t index : chosen_parts(state)) {
    PartState& part = state.parts[index];
    const PromptState& prompt = state.prompt_of(index);
    json = part.form.whole(state.head, prompt.echoed, *part.finish);
    OutputJson choice = std::move(json["choices"][0]);
    choice["index"] = std::ssize(choices);
    if (part.scores) choice["logprobs"] = part.scores->take();
    if (state.delivery.prompt_logprobs && state.delivery.logprobs_form == LogprobsForm::kCompletion) {
      choice["prompt_logprobs"] = prompt_logprobs_json(prompt.info.texts->tokenizer(), prompt.info.prompt_ids,
                                                       prompt.scores, *state.delivery.prompt_logprobs);
    }
    choices.push_back(std::move(choice));
  }
  json["choices"] = std::move(choices);
  json["usage"] = openai_usage(sum);
  if (state.delivery.prompt_logprobs && state.delivery.logprobs_form == LogprobsForm::kChat) {
    json["prompt_logprobs"] =
        prompt_logprobs_json(state.prompts.front().info.texts->tokenizer(), state.prompts.front().info.prompt_ids,
                             state.prompts.front().scores, *state.delivery.prompt_logprobs);
  }
  state.writer.send(200, answer_headers(state.context, state.prompts.front().info, sum), to_text(json));
}

GroupSink whole_sink(const std::shared_ptr<AnswerState>& state) {
  GroupSink sink;
  sink.on_token = [state](std::size_t part, const TokenEvent& token) {
    state->add_scores(part, token, [state, part] { state->parts[part].begun = true; });
  };
  sink.on_finish = [state](std::size_t part, const FinishEvent& finish) {
    state->parts[part].finish = state->delivery.prompt_only ? without_answer(finish) : finish;
    if (state->all_finished()) send_whole(*state);
  };
  sink.on_error = [state](const ApiError& error) { send_error(state->writer, error, ApiStyle::kOpenAi); };
  return sink;
}

void write_chunk(AnswerState& state, std::size_t part, OutputJson chunk) {
  chunk["choices"][0]["index"] = part;
  state.writer.write(to_event(chunk));
}

void write_scored_chunk(AnswerState& state, std::size_t part, OutputJson chunk) {
  if (state.parts[part].scores) chunk["choices"][0]["logprobs"] = state.parts[part].scores->take();
  write_chunk(state, part, std::move(chunk));
}

void begin_part(AnswerState& state, std::size_t part) {
  if (std::exchange(state.parts[part].begun, true)) return;
  if (!std::exchange(state.begun, true)) {
    state.writer.begin_stream(stream_headers(state.context, state.prompts.front().info));
  }
  if (!state.parts[part].form.first_chunk) return;
  OutputJson chunk = state.parts[part].form.first_chunk(state.head, state.prompt_of(part).echoed);
  if (chunk.is_null()) return;
  if (state.delivery.echo) {
    write_scored_chunk(state, part, std::move(chunk));
  } else {
    write_chunk(state, part, std::move(chunk));
  }
}

void finish_part(AnswerState& state, std::size_t part, const FinishEvent& event) {
  begin_part(state, part);
  if (!event.tail.empty()) write_chunk(state, part, state.parts[part].form.text_chunk(state.head, event.tail));
  OutputJson last = state.parts[part].form.last_chunk(state.head, openai_finish_reason(event.reason));
  state.parts[part].finish = event;
  const bool is_end = state.all_finished();
  // LoRAX's clients read usage from the last chunk; OpenAI's ask for one of its own.
  if (is_end && !state.delivery.include_usage) last["usage"] = openai_usage(sum_of(state));
  write_chunk(state, part, std::move(last));
  if (!is_end) return;
  if (state.delivery.include_usage) {
    state.writer.write(to_event(usage_chunk(state.head, state.parts[part].form.chunk_object, sum_of(state))));
  }
  state.writer.write("data: [DONE]\n\n");
  state.writer.end();
}

GroupSink stream_sink(const std::shared_ptr<AnswerState>& state) {
  GroupSink sink;
  sink.on_token = [state](std::size_t part, const TokenEvent& token) {
    state->add_scores(part, token, [state, part] { begin_part(*state, part); });
    if (state->delivery.prompt_only) return;
    // With logprobs each token has a chunk, since they belong to it.
    if (state->parts[part].scores || !token.delta.empty()) {
      write_scored_chunk(*state, part, state->parts[part].form.text_chunk(state->head, token.delta));
    }
  };
  sink.on_finish = [state](std::size_t part, const FinishEvent& event) {
    finish_part(*state, part, state->delivery.prompt_only ? without_answer(event) : event);
  };
  sink.on_error = [state](const ApiError& error) {
    if (!state->begun) {
      send_error(state->writer, error, ApiStyle::kOpenAi);
      return;
    }
    state->writer.note("error", std::string(failure_row(error.failure).error_code));
    state->writer.write(error_event(error, ApiStyle::kOpenAi));
    state->writer.end();
  };
  return sink;
}

}  // namespace

std::optional<ApiError> select_model(const ServerContext& context, std::string& model, GenerateParameters& parameters) {
  const std::string adapter_id = parameters.adapter_id.value_or("");
  parameters.adapter_id = model == context.services.model_id ? std::string() : model;
  if (adapter_id.empty() || adapter_id == *parameters.adapter_id) return std::nullopt;
  if (!parameters.adapter_id->empty()) {
    return ApiError{.failure = Failure::kValidation,
                    .message = fmt::format("`adapter_id` and `model` must not name two adapters, given: '{}' and '{}'",
                                           adapter_id, model),
                    .param = "adapter_id"};
  }
  parameters.adapter_id = model = adapter_id;
  return std::nullopt;
}

OpenAiHead make_head(const ServerContext& context, const char* id_prefix, const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = fmt::format("{}{:016x}{:08x}", id_prefix, random_u64(), static_cast<std::uint32_t>(random_u64())),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model.empty() ? context.services.model_id : model};
}

void answer_openai(ServerContext& context, const ResponseWriter& writer, std::vector<OpenAiPrompt> prompts,
                   OpenAiHead head, const std::function<OpenAiForm()>& make_form, OpenAiDelivery delivery) {
  const auto state = std::make_shared<AnswerState>(context, writer);
  state->head = std::move(head);
  state->delivery = delivery;
  std::vector<PreparedRequest> requests;
  for (OpenAiPrompt& prompt : prompts) {
    state->prompts.push_back({.info = prompt.prepared.info, .echoed = std::move(prompt.echoed)});
    requests.push_back(std::move(prompt.prepared));
  }
  state->parts.resize(requests.size() * delivery.num_candidates);
  for (PartState& part : state->parts) {
    part.form = make_form();
    // One call asks for one adapter.
    const Tokenizer& tokenizer = state->prompts.front().info.texts->tokenizer();
    if (delivery.logprobs) part.scores.emplace(tokenizer, delivery.logprobs_form, *delivery.logprobs);
  }
  start_group(context, writer, std::move(requests), delivery.num_candidates,
              delivery.stream ? stream_sink(state) : whole_sink(state));
}

std::optional<ApiError> choose_counts(const GenerateParameters& parameters, OpenAiDelivery& delivery) {
  delivery.num_choices = static_cast<std::size_t>(parameters.num_choices.value_or(1));
  delivery.num_candidates =
      static_cast<std::size_t>(parameters.num_candidates.value_or(parameters.num_choices.value_or(1)));
  if (!delivery.stream || delivery.num_candidates == delivery.num_choices) return std::nullopt;
  return ApiError{.failure = Failure::kValidation,
                  .message = fmt::format("`best_of` must equal `n` = {} in a stream, given: {}", delivery.num_choices,
                                         delivery.num_candidates),
                  .param = "best_of"};
}

}  // namespace shoal
