#include "server/generation.h"

#include <fmt/format.h>

#include <atomic>
#include <random>

#include "server/adapter_names.h"

namespace shoal {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::max(0.0, std::chrono::duration<double>(end - begin).count());
}

std::string milliseconds(double seconds) { return std::to_string(static_cast<std::int64_t>(seconds * 1000.0)); }

// One request between scheduler and connection. Its members are used on the connection's loop, but for `posted`.
struct Drive {
  enum class Counts : std::uint8_t { kRequest, kNothing };

  Drive(ServerContext& server_context, ResponseWriter response_writer, GenerationInfo request_info,
        GenerationSink event_sink, Counts what_counts)
      : context(server_context),
        writer(std::move(response_writer)),
        info(std::move(request_info)),
        sink(std::move(event_sink)),
        counts(what_counts) {}

  void pump() {
    while (stream != nullptr) {
      std::optional<Event> event = stream->pop();
      if (!event) return;
      if (const auto* token = std::get_if<TokenEvent>(&*event)) {
        observe_token();
        sink.on_token(*token);
      } else if (const auto* finish = std::get_if<FinishEvent>(&*event)) {
        end();
        writer.note("generated_tokens", finish->generated_tokens);
        if (counts == Counts::kRequest) count_success(context, info, *finish);
        sink.on_finish(*finish);
      } else {
        end();
        const ApiError error = named_error(std::get<Error>(*event));
        count_failure(failure_row(error.failure).metric);
        sink.on_error(error);
      }
    }
  }

  // Loaders tell what is wrong with a file; whoever asked must also see of which adapter.
  ApiError named_error(const Error& error) const {
    ApiError named = to_api_error(error);
    const bool of_adapter = error.code == ErrorCode::kAdapterNotFound || error.code == ErrorCode::kAdapterInvalid;
    const bool is_named = named.message.starts_with("adapter ") && !info.adapter_has_name;
    if (of_adapter && info.adapter && !is_named) {
      named.message = fmt::format("adapter '{}': {}", info.adapter->id, named.message);
    }
    return named;
  }

  void client_gone() {
    if (stream == nullptr) return;
    cancel();
    count_failure("dropped");
  }

  void cancel() {
    if (stream == nullptr) return;
    stream->cancel();
    end();
  }

  void count_failure(const char* metric) const {
    if (counts == Counts::kRequest) context.metrics.count_failure(metric);
  }

  // The stream holds the callback that holds this: let go, or neither is freed.
  void end() {
    stream.reset();
    leases.clear();
  }

  void observe_token() {
    const auto now = Clock::now();
    if (num_tokens++ == 0) {
      context.metrics.observe_first_token(seconds_between(info.received, now));
    } else {
      context.metrics.observe_inter_token(seconds_between(last_token, now));
    }
    last_token = now;
  }

  ServerContext& context;
  const ResponseWriter writer;
  const GenerationInfo info;
  const GenerationSink sink;
  const Counts counts;
  std::shared_ptr<EventStream> stream;
  std::vector<AdapterLease> leases;
  std::atomic<bool> posted{false};  // a pump is on its way
  std::int64_t num_tokens = 0;
  Clock::time_point last_token;
};

}  // namespace

Parsed<PreparedRequest> prepare_generation(ServerContext& context, const JsonCall& call,
                                           const GenerateParameters& parameters, const Tokenize& tokenize) {
  auto prepared = prepare_prompts(context, call, parameters, {tokenize});
  if (auto* error = std::get_if<ApiError>(&prepared)) return std::move(*error);
  return std::move(std::get<std::vector<PreparedRequest>>(prepared).front());
}

Parsed<std::vector<PreparedRequest>> prepare_prompts(ServerContext& context, const JsonCall& call,
                                                     const GenerateParameters& parameters,
                                                     const std::vector<Tokenize>& prompts) {
  context.metrics.count_request();
  if (!context.ready) {
    return ApiError{.failure = Failure::kUnavailable, .message = "the server is shutting down", .param = {}};
  }
  if (auto error = check_values(parameters, context.options)) return *error;
  auto choice = choose_adapter(context, call, parameters);
  if (auto* error = std::get_if<ApiError>(&choice)) return std::move(*error);
  const auto& chosen = std::get<ChosenAdapter>(choice);
  const std::uint64_t random_seed = random_u64();
  std::vector<PreparedRequest> all;
  for (const Tokenize& tokenize : prompts) {
    auto tokens = tokenize(*chosen.texts);
    if (auto* error = std::get_if<ApiError>(&tokens)) return *error;
    auto prepared = prepare_request(parameters, std::get<std::vector<std::int64_t>>(std::move(tokens)), context.options,
                                    context.services.engine.vocab_size, random_seed);
    if (auto* error = std::get_if<ApiError>(&prepared)) return *error;
    auto& ready = std::get<PreparedRequest>(prepared);
    ready.request.tenant = ready.request.cache_salt = call.caller.tenant;
    ready.request.adapter = chosen.key;
    ready.request.tokenizer = chosen.texts->shared_tokenizer();
    ready.info.adapter = chosen.shown;
    ready.info.adapter_has_name = chosen.has_name;
    ready.info.texts = chosen.texts;
    ready.leases = chosen.leases;
    // Told where the adapter's absence would be: at the same point of the answer, in the same words.
    ready.forbidden_id = chosen.forbidden_id;
    ready.grammar = parameters.grammar;
    ready.info.received = call.received;
    ready.info.validated = Clock::now();
    context.metrics.observe_input_length(ready.info.prompt_tokens);
    if (!parameters.embed) context.metrics.observe_max_new_tokens(ready.info.max_new_tokens);
    all.push_back(std::move(ready));
  }
  return all;
}

namespace {

// The request on its way, or null: then the sink knows.
std::shared_ptr<Drive> submit(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared,
                              GenerationSink sink, Drive::Counts counts) {
  auto drive = std::make_shared<Drive>(context, writer, std::move(prepared.info), std::move(sink), counts);
  // From the scheduler's thread: many events may share one trip to the connection's loop.
  const auto on_event = [drive] {
    if (drive->posted.exchange(true)) return;
    drive->writer.post([drive] {
      drive->posted = false;
      drive->pump();
    });
  };
  if (drive->info.adapter) writer.note("adapter", drive->info.adapter->id);
  writer.note("prompt_tokens", drive->info.prompt_tokens);
  const auto turn_away = [&](const ApiError& error) {
    drive->count_failure(failure_row(error.failure).metric);
    drive->sink.on_error(error);
    return nullptr;
  };
  if (prepared.forbidden_id) return turn_away(adapter_not_there(*prepared.forbidden_id));
  auto submitted = context.services.scheduler.submit(std::move(prepared.request), on_event);
  if (!submitted.ok()) return turn_away(to_api_error(submitted.error()));
  drive->stream = std::move(submitted.value());
  drive->leases = std::move(prepared.leases);
  return drive;
}

}  // namespace

void start_generation(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared,
                      GenerationSink sink) {
  const auto parts = std::make_shared<std::pair<PreparedRequest, GenerationSink>>(std::move(prepared), std::move(sink));
  with_grammar(
      context, writer, parts->first, [&context, writer, parts](Parsed<std::shared_ptr<const Grammar>> compiled) {
        auto& [request, events] = *parts;
        if (const auto* error = std::get_if<ApiError>(&compiled)) {
          context.metrics.count_failure(failure_row(error->failure).metric);
          events.on_error(*error);
          return;
        }
        request.request.grammar = std::get<std::shared_ptr<const Grammar>>(std::move(compiled));
        const auto drive = submit(context, writer, std::move(request), std::move(events), Drive::Counts::kRequest);
        if (drive == nullptr) return;
        if (writer.closed()) {
          drive->client_gone();
          return;
        }
        writer.on_close([drive] { drive->client_gone(); });
      });
}

void with_grammar(ServerContext& context, const ResponseWriter& writer, const PreparedRequest& prepared,
                  std::function<void(Parsed<std::shared_ptr<const Grammar>>)> go_on) {
  if (!prepared.grammar) {
    go_on(std::shared_ptr<const Grammar>());
    return;
  }
  context.grammars.compile(
      prepared.grammar->spec, prepared.info.texts, prepared.request.tenant,
      [writer, go_on = std::move(go_on), field = prepared.grammar->field](const GrammarCompiler::Compiled& compiled) {
        writer.post([go_on, field, compiled] {
          if (compiled.ok()) {
            go_on(compiled.value());
            return;
          }
          ApiError error = to_api_error(compiled.error());
          error.message = fmt::format("`{}`: {}", field, error.message);
          error.param = field;
          go_on(std::move(error));
        });
      });
}

std::function<void()> start_generation_part(ServerContext& context, const ResponseWriter& writer,
                                            PreparedRequest prepared, GenerationSink sink) {
  const auto drive = submit(context, writer, std::move(prepared), std::move(sink), Drive::Counts::kNothing);
  if (drive == nullptr) return nullptr;
  return [drive] { drive->cancel(); };
}

void count_success(ServerContext& context, const GenerationInfo& info, const FinishEvent& finish) {
  const RequestTimings& timings = finish.timings;
  context.metrics.count_success({.total_s = seconds_between(info.received, Clock::now()),
                                 .validation_s = seconds_between(info.received, info.validated),
                                 .queue_s = seconds_between(timings.submitted, timings.started),
                                 .inference_s = seconds_between(timings.started, timings.finished),
                                 .generated_tokens = finish.generated_tokens});
}

HttpHeaders stream_headers(const ServerContext& context, const GenerationInfo& info) {
  const bool on_cpu = context.services.engine.device.starts_with("cpu");
  HttpHeaders headers = {{"content-type", "text/event-stream"},
                         {"cache-control", "no-cache"},
                         {"x-accel-buffering", "no"},
                         {"x-compute-type", on_cpu ? "cpu+optimized" : "gpu+optimized"},
                         {"x-compute-characters", std::to_string(info.prompt_characters)},
                         {"x-model-id", context.services.model_id}};
  if (info.adapter) {
    headers.emplace_back("x-adapter-id", info.adapter->id);
    headers.emplace_back("x-adapter-source", info.adapter->source);
  }
  return headers;
}

HttpHeaders answer_headers(const ServerContext& context, const GenerationInfo& info, const FinishEvent& finish) {
  HttpHeaders headers = stream_headers(context, info);
  headers.erase(headers.begin(), headers.begin() + 3);
  headers.insert(headers.begin(), {"content-type", "application/json"});
  const RequestTimings& timings = finish.timings;
  const std::string total = milliseconds(seconds_between(info.received, Clock::now()));
  const double inference_s = seconds_between(timings.started, timings.finished);
  const double first_s = seconds_between(timings.started, timings.first_token);
  const auto num_generated = static_cast<double>(std::max<std::int64_t>(finish.generated_tokens, 1));
  headers.emplace_back("x-compute-time", total);
  headers.emplace_back("x-total-time", total);
  headers.emplace_back("x-prompt-tokens", std::to_string(finish.prompt_tokens));
  headers.emplace_back("x-generated-tokens", std::to_string(finish.generated_tokens));
  headers.emplace_back("x-skipped-tokens", "0");
  headers.emplace_back("x-total-tokens", std::to_string(finish.prompt_tokens + finish.generated_tokens));
  headers.emplace_back("x-validation-time", milliseconds(seconds_between(info.received, info.validated)));
  headers.emplace_back("x-queue-time", milliseconds(seconds_between(timings.submitted, timings.started)));
  headers.emplace_back("x-inference-time", milliseconds(inference_s));
  headers.emplace_back("x-time-per-token", milliseconds(inference_s / num_generated));
  headers.emplace_back("x-time-to-first-token", milliseconds(first_s));
  headers.emplace_back("x-time-per-output-token",
                       milliseconds((inference_s - first_s) / std::max(num_generated - 1.0, 1.0)));
  return headers;
}

void refuse(ServerContext& context, const ResponseWriter& writer, const ApiError& error, ApiStyle style) {
  context.metrics.count_failure(failure_row(error.failure).metric);
  send_error(writer, error, style);
}

std::uint64_t random_u64() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace shoal
