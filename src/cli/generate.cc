// `shoal generate`: text or token ids from one prompt, or greedy ids for a file of prompts, through the scheduler.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <semaphore>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/token_file.h"
#include "core/log.h"
#include "scheduler/scheduler.h"
#include "server/adapter_texts.h"
#include "text/chat_template.h"
#include "weights/safetensors.h"

namespace shoal {
namespace {

struct GenerateOptions {
  ModelOptions model;
  std::string adapter_id;
  std::optional<std::string> prompt;
  std::optional<std::string> token_ids;
  std::optional<std::string> input;
  std::string output;
  bool chat = false;
  bool ignore_eos = false;
  std::int64_t max_new_tokens = 128;
  float temperature = 0.0F;
  std::uint64_t seed = 0;
};

// A request and the tokens that came back.
struct Answer {
  std::vector<std::int64_t> ids;
  FinishEvent finish;
};

using OnToken = std::function<void(const TokenEvent& token)>;

Request make_request(const GenerateOptions& options, std::vector<std::int64_t> prompt_ids) {
  Request request;
  request.prompt_ids = std::move(prompt_ids);
  request.max_new_tokens = options.max_new_tokens;
  request.ignore_eos = options.ignore_eos;
  request.sampling.greedy = options.temperature <= 0;
  request.sampling.temperature = options.temperature > 0 ? options.temperature : 1.0F;
  request.sampling.seed = options.seed;
  if (!options.adapter_id.empty()) request.adapter = AdapterKey{.id = options.adapter_id};
  return request;
}

// All requests at once, as one batch; `on_token` sees each token of the first one as it comes.
std::vector<Answer> run_requests(Session& session, const Tokenizer* tokenizer, std::vector<Request> requests,
                                 const OnToken& on_token) {
  Scheduler scheduler(session.engine(), session.wakeup(), tokenizer,
                      {.max_batch_prefill_tokens = session.engine().info().max_step_tokens,
                       .max_concurrent_requests = static_cast<std::int64_t>(requests.size()),
                       .max_total_tokens = 0,
                       .block_order = block_order_from_environment()});
  std::counting_semaphore<> events(0);
  std::vector<std::shared_ptr<EventStream>> streams;
  for (Request& request : requests) {
    Result<std::shared_ptr<EventStream>> stream = scheduler.submit(std::move(request), [&] { events.release(); });
    if (!stream.ok()) throw StartError(stream.error().message);
    streams.push_back(stream.value());
  }
  std::vector<Answer> answers(streams.size());
  for (std::size_t running = streams.size(); running > 0;) {
    events.acquire();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      while (std::optional<Event> event = streams[i]->pop()) {
        if (const auto* error = std::get_if<Error>(&*event)) throw StartError(error->message);
        if (const auto* token = std::get_if<TokenEvent>(&*event)) {
          answers[i].ids.push_back(token->id);
          if (i == 0) on_token(*token);
        }
        if (auto* finish = std::get_if<FinishEvent>(&*event)) {
          answers[i].finish = std::move(*finish);
          --running;
        }
      }
    }
  }
  return answers;
}

// The model's texts, or those that the adapter brings. Whichever it is, what the model's tokenizer has may be sampled.
struct ReadTexts {
  std::shared_ptr<const Texts> texts;
  std::int64_t vocab_limit = 0;
};

ReadTexts read_texts(const GenerateOptions& options, AdapterSource& source) {
  const std::string& model_dir = options.model.model_id;
  const auto base = std::make_shared<const Texts>(Tokenizer::load(model_dir),
                                                  std::make_shared<const ChatTemplate>(ChatTemplate::load(model_dir)));
  const std::int64_t vocab_limit = base->tokenizer().vocab_size();
  if (options.adapter_id.empty()) return {.texts = base, .vocab_limit = vocab_limit};
  AdapterTexts adapters(base, vocab_limit, [&source](const AdapterKey& key) { return source.fetch(key); });
  AdapterTexts::Found found = adapters.find(AdapterKey{.id = options.adapter_id});
  if (!found.ok()) throw StartError(fmt::format("adapter {}: {}", options.adapter_id, found.error().message));
  return {.texts = found.value(), .vocab_limit = vocab_limit};
}

std::vector<std::int64_t> encode_prompt(const GenerateOptions& options, const Texts& texts) {
  const Tokenizer& tokenizer = texts.tokenizer();
  if (!options.chat) {
    Result<std::vector<std::int64_t>> ids = tokenizer.encode(*options.prompt, SpecialTokens::kAdd);
    if (!ids.ok()) throw StartError(ids.error().message);
    return ids.value();
  }
  const nlohmann::json messages = {{{"role", "user"}, {"content", *options.prompt}}};
  Result<RenderedPrompt> prompt = texts.chat_template()->render_prompt(messages.dump(), {}, tokenizer);
  if (!prompt.ok()) throw StartError(prompt.error().message);
  Result<std::vector<std::int64_t>> ids =
      tokenizer.encode(prompt.value().text, SpecialTokens::kNone, prompt.value().plain_ranges);
  if (!ids.ok()) throw StartError(ids.error().message);
  return ids.value();
}

void print_timings(const FinishEvent& finish) {
  using Seconds = std::chrono::duration<double>;
  const RequestTimings& t = finish.timings;
  const double prefill_s = Seconds(t.first_token - t.started).count();
  const double decode_s = Seconds(t.finished - t.first_token).count();
  const auto decoded = static_cast<double>(finish.generated_tokens - 1);
  fmt::print(stderr, "prompt {} tokens in {:.3f} s ({:.1f} tokens/s), answer {} tokens, {:.1f} tokens/s\n",
             finish.prompt_tokens, prefill_s, static_cast<double>(finish.prompt_tokens) / prefill_s,
             finish.generated_tokens, decoded > 0 ? decoded / decode_s : 0.0);
}

EngineOptions sizes_for(const std::vector<std::vector<std::int64_t>>& prompts, std::int64_t max_new_tokens,
                        const ModelInfo& model) {
  EngineOptions sizes;
  sizes.max_step_tokens = 512;
  for (const std::vector<std::int64_t>& prompt : prompts) {
    const std::int64_t tokens = static_cast<std::int64_t>(prompt.size()) + max_new_tokens;
    sizes.min_served_positions = std::max(sizes.min_served_positions, tokens);
    sizes.min_cache_tokens += (tokens + kBlockSize - 1) / kBlockSize * kBlockSize;
  }
  check_positions("--max-new-tokens with the prompt", sizes.min_served_positions, model);
  return sizes;
}

// Greedy ids of every sequence of a file, written as `*.greedy`.
int run_file(const GenerateOptions& options, const ModelInfo& model) {
  if (options.output.empty()) throw UsageError("--input needs --output");
  const std::vector<NamedIds> named = read_token_file(*options.input);
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<Request> requests;
  for (const NamedIds& sequence : named) {
    prompts.push_back(sequence.ids);
    requests.push_back(make_request(options, sequence.ids));
  }
  PathSource source(options.model.adapter_dir);
  Session session(options.model, source, sizes_for(prompts, options.max_new_tokens, model));
  std::vector<Answer> answers = run_requests(session, nullptr, std::move(requests), [](const TokenEvent&) {});
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto count = static_cast<std::int64_t>(answers[i].ids.size());
    tensors.push_back(
        {.name = named[i].name + "greedy", .tensor = Tensor(answers[i].ids.data(), DType::kInt64, {count})});
  }
  write_safetensors(options.output, tensors);
  return 0;
}

int run_generate(const GenerateOptions& options) {
  init_logging(options.model.log_level, LogFormat::kText);
  const int given = (options.prompt ? 1 : 0) + (options.token_ids ? 1 : 0) + (options.input ? 1 : 0);
  if (given != 1) throw UsageError("one of --prompt, --token-ids and --input is needed, and only one");
  const ModelInfo model = read_model(options.model);
  if (options.input) return run_file(options, model);

  const bool text = options.prompt.has_value();
  PathSource source(options.model.adapter_dir);
  const ReadTexts read = text ? read_texts(options, source) : ReadTexts();
  const Tokenizer* tokenizer = text ? &read.texts->tokenizer() : nullptr;
  const std::vector<std::int64_t> prompt_ids =
      text ? encode_prompt(options, *read.texts) : parse_numbers("--token-ids", *options.token_ids);
  EngineOptions sizes = sizes_for({prompt_ids}, options.max_new_tokens, model);
  if (text) sizes.vocab_limit = read.vocab_limit;
  Session session(options.model, source, sizes);
  for (const std::int64_t id : prompt_ids) {
    if (id < session.engine().model_info().vocab) continue;
    throw UsageError(
        fmt::format("--token-ids holds {}, expected ids below {}", id, session.engine().model_info().vocab));
  }
  std::vector<Request> requests;
  requests.push_back(make_request(options, prompt_ids));
  const std::vector<Answer> answers =
      run_requests(session, tokenizer, std::move(requests), [&](const TokenEvent& token) {
        if (text) fmt::print("{}", token.delta);
        std::fflush(stdout);
      });
  fmt::print("{}\n", text ? answers[0].finish.tail : fmt::format("{}", fmt::join(answers[0].ids, ",")));
  print_timings(answers[0].finish);
  return 0;
}

}  // namespace

Command add_generate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "text from one prompt, streamed to stdout");
  auto options = std::make_shared<GenerateOptions>();
  options->model.log_level = "warn";
  options->model.add_to(*command);
  command->add_option("--adapter-id", options->adapter_id, "adapter folder");
  command->add_option("--prompt", options->prompt, "text")->check(some_text());
  command->add_option("--token-ids", options->token_ids, "ids instead of text: 1,2,3; prints ids, needs no tokenizer");
  command->add_option("--input", options->input, "safetensors with tensors named *.input_ids")
      ->check(CLI::ExistingFile);
  command->add_option("--output", options->output, "with --input: safetensors with tensors named *.greedy");
  command->add_flag("--chat", options->chat, "put the prompt through the model's chat template");
  command->add_flag("--ignore-eos", options->ignore_eos, "go on after an end token");
  command->add_option("--max-new-tokens", options->max_new_tokens, "length of the answer")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 is greedy")
      ->check(temperature_number())
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the random numbers")->check(seed_number())->capture_default_str();
  return [options] { return run_generate(*options); };
}

}  // namespace shoal
