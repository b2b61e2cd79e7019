// `shoal serve`: the HTTP server over one model.
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/adapter_flags.h"
#include "cli/commands.h"
#include "cli/http_flags.h"
#include "cli/json_log.h"
#include "cli/lorax_flags.h"
#include "cli/session.h"
#include "core/log.h"
#include "hub/usable_adapters.h"
#include "lora/adapter_check.h"
#include "server/server.h"

namespace shoal {
namespace {

constexpr std::int64_t kDefaultContext = 4096;
constexpr std::chrono::seconds kDrainLimit{90};
constexpr int kLoadersOfRemote = 16;

// Waits for SIGTERM and SIGINT on a thread of its own; all other threads have them blocked. Before serving begins the
// first one ends the process, then it asks for a drain, and one more ends the process at once.
class SignalWatch {
 public:
  SignalWatch() {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { watch(); });
  }
  ~SignalWatch() {
    stopping_.store(true);
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void wait_for_drain() {
    serving_.store(true);
    drain_.wait();
  }

 private:
  void watch() {
    for (;;) {
      int signal = 0;
      sigwait(&signals_, &signal);
      if (stopping_.load()) return;
      if (signal == SIGUSR1) continue;
      if (!serving_.load() || draining_) std::_Exit(0);
      draining_ = true;
      drain_.notify();
    }
  }

  sigset_t signals_{};
  std::atomic<bool> serving_{false};
  std::atomic<bool> stopping_{false};
  bool draining_ = false;  // of watch() alone
  Wakeup drain_;
  std::thread thread_;
};

void log_memory(const MemoryPlan& plan) {
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  spdlog::info("memory: {:.2f} GiB of weights, {:.2f} GiB for adapters, {:.2f} GiB of cache{}", gib(plan.weight_bytes),
               gib(plan.adapter_bytes), gib(plan.cache_bytes),
               plan.left_bytes > 0
                   ? fmt::format(", {:.2f} GiB scratch of steps; {:.2f} GiB free, {:.2f} of them for graphs",
                                 gib(plan.scratch_bytes), gib(plan.left_bytes), gib(plan.graph_bytes))
                   : "");
}

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  AdapterSourceFlags sources;
  HttpFlags http;
  LoraxFlags lorax;
  std::string hostname = "0.0.0.0";
  int port = 3000;
  std::int64_t max_input_length = 0;
  std::int64_t max_total_tokens = 0;
  std::int64_t max_batch_prefill_tokens = 0;
  std::int64_t max_sequences = 256;
  std::int64_t max_active_adapters = 1024;
  double adapter_memory_fraction = 0.1;
  std::string adapter_memory;
  std::string adapter_host_memory = "2GiB";
  double adapter_cycle_time_s = 2.0;
  std::vector<std::string> preloaded_adapter_ids;
  bool prefix_caching = false;
  std::int64_t max_queue = -1;
  std::int64_t max_requests_per_tenant = 0;
  double request_timeout_s = 0.0;
  std::vector<std::string> tenant_api_keys;
  std::string tokenizer_config_path;
  bool json_output = false;
};

void add_limits(CLI::App& command, ServeOptions& options) {
  command.add_option("--max-concurrent-requests", options.server.max_concurrent_requests, "beyond: 429")
      ->envname("MAX_CONCURRENT_REQUESTS")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--max-stop-sequences", options.server.max_stop_sequences, "stop strings of one request")
      ->envname("MAX_STOP_SEQUENCES")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--max-best-of", options.server.max_best_of,
                  "answers that `best_of` of a native request chooses from")
      ->envname("MAX_BEST_OF")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  command.add_option("--max-input-length", options.max_input_length, "prompt tokens (default: max-total-tokens - 1)")
      ->envname("MAX_INPUT_LENGTH")
      ->check(at_least(1));
  command
      .add_option("--max-total-tokens", options.max_total_tokens,
                  "prompt and answer (default: the model's positions, 4096 at most)")
      ->envname("MAX_TOTAL_TOKENS")
      ->check(at_least(2));
  command
      .add_option("--max-batch-prefill-tokens", options.max_batch_prefill_tokens,
                  "tokens of one step; longer prompts run in chunks (default: 512 on the CPU)")
      ->envname("MAX_BATCH_PREFILL_TOKENS")
      ->check(at_least(1));
  command.add_option("--max-batch-size", options.max_sequences, "sequences of one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_switch(command, "--prefix-caching", options.prefix_caching,
             "texts that begin alike, under one adapter, are computed once while their cache blocks last")
      ->envname("PREFIX_CACHING");
}

void add_admission_flags(CLI::App& command, ServeOptions& options) {
  command.add_option("--api-key", options.server.api_key, "bearer token that every generation must carry")
      ->check(some_text())
      ->envname("API_KEY");
  command
      .add_option("--tenant-api-key", options.tenant_api_keys,
                  "TENANT=KEY: a bearer token that speaks for one tenant; may be repeated")
      ->envname("TENANT_API_KEY")
      ->allow_extra_args(false)
      ->check(some_text());
  command
      .add_option("--max-queue", options.max_queue, "requests that wait for their start; beyond: 429 (default: any)")
      ->envname("MAX_QUEUE")
      ->check(at_least(0));
  command
      .add_option("--max-requests-per-tenant", options.max_requests_per_tenant,
                  "requests of one tenant, running and queued; beyond: 429 (default: any)")
      ->envname("MAX_REQUESTS_PER_TENANT")
      ->check(at_least(1));
  command
      .add_option("--request-timeout", options.request_timeout_s,
                  "seconds until an answer must be whole, its wait included; then 504 (default: any)")
      ->envname("REQUEST_TIMEOUT")
      ->check(CLI::Range(0.001, 1e6));
}

// TENANT=KEY, up to the first '='.
std::vector<TenantApiKey> parse_tenant_keys(const ServeOptions& options) {
  std::vector<TenantApiKey> keys;
  for (const std::string& text : options.tenant_api_keys) {
    const std::size_t mark = text.find('=');
    if (mark == std::string::npos || mark == 0 || mark + 1 == text.size()) {
      throw UsageError("--tenant-api-key: expected TENANT=KEY");  // not what was found: it may hold the secret
    }
    TenantApiKey added{.tenant = text.substr(0, mark), .key = text.substr(mark + 1)};
    const bool taken = added.key == options.server.api_key ||
                       std::any_of(keys.begin(), keys.end(), [&](const auto& each) { return each.key == added.key; });
    if (taken) throw UsageError(fmt::format("--tenant-api-key: the key of tenant '{}' is given twice", added.tenant));
    keys.push_back(std::move(added));
  }
  return keys;
}

void add_adapter_flags(CLI::App& command, ServeOptions& options) {
  options.sources.add_to(command);
  command.add_option("--max-active-adapters", options.max_active_adapters, "adapters on the device at once")
      ->envname("MAX_ACTIVE_ADAPTERS")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--adapter-memory-fraction", options.adapter_memory_fraction,
                  "share of the device's memory for adapters; on the CPU of what cache and adapters take together")
      ->envname("ADAPTER_MEMORY_FRACTION")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  command.add_option("--adapter-memory", options.adapter_memory, "the same in bytes, in place of the share");
  command
      .add_option("--adapter-host-memory", options.adapter_host_memory,
                  "bytes of adapters in host memory, from where they reach the device fast")
      ->envname("ADAPTER_HOST_MEMORY")
      ->capture_default_str();
  command
      .add_option("--adapter-cycle-time-s", options.adapter_cycle_time_s,
                  "seconds for which adapters on the device may keep one out that finds no room")
      ->envname("ADAPTER_CYCLE_TIME_S")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command
      .add_option("--max-runtime-adapters", options.server.max_runtime_adapters,
                  "names that one tenant may load at once by /v1/load_lora_adapter; 0: that is not served")
      ->envname("MAX_RUNTIME_ADAPTERS")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command
      .add_option("--preloaded-adapter-ids", options.preloaded_adapter_ids,
                  "an adapter to load at the start and keep on the device; may be repeated")
      ->envname("PRELOADED_ADAPTER_IDS")
      ->allow_extra_args(false)
      ->check(some_text());
}

struct Limits {
  std::int64_t max_input_length = 0;
  std::int64_t max_total_tokens = 0;
};

// Lengths that were not given follow the model; those that were must fit it and each other.
Limits resolve_limits(const ServeOptions& options, const ModelInfo& model) {
  Limits limits;
  limits.max_total_tokens =
      options.max_total_tokens > 0 ? options.max_total_tokens : std::min(model.max_positions, kDefaultContext);
  check_positions("--max-total-tokens", limits.max_total_tokens, model);
  if (limits.max_total_tokens < 2) {
    throw StartError(fmt::format("the model has {} position, expected 2: a token of the prompt and one of the answer",
                                 limits.max_total_tokens));
  }
  limits.max_input_length = options.max_input_length > 0 ? options.max_input_length : limits.max_total_tokens - 1;
  if (limits.max_input_length >= limits.max_total_tokens) {
    throw UsageError(fmt::format("--max-input-length is {}, expected less than the {} of --max-total-tokens",
                                 limits.max_input_length, limits.max_total_tokens));
  }
  return limits;
}

// The tokenizer may leave rows of the vocabulary unused, never the reverse.
void check_vocabulary(const Tokenizer& tokenizer, const ModelInfo& model) {
  if (tokenizer.vocab_size() > model.vocab) {
    throw StartError(
        fmt::format("the tokenizer has {} ids, the model's vocabulary only {}", tokenizer.vocab_size(), model.vocab));
  }
  if (tokenizer.vocab_size() < model.vocab) {
    spdlog::info("the tokenizer has {} ids of a vocabulary of {}: the others are never sampled", tokenizer.vocab_size(),
                 model.vocab);
  }
}

// Ends admission, lets streams finish, then closes.
void drain(Server& server, Scheduler& scheduler) {
  spdlog::info("draining: streams that run may finish, a second signal ends them");
  server.set_ready(false);
  if (!scheduler.drain(std::chrono::duration_cast<std::chrono::milliseconds>(kDrainLimit))) {
    spdlog::warn("some streams did not finish in {} s", kDrainLimit.count());
  }
  server.stop(std::chrono::seconds(5));
}

int run_serve(ServeOptions& options) {
  init_logging(options.model.log_level, LogFormat::kText);
  if (options.json_output) spdlog::set_formatter(make_json_formatter());
  SignalWatch signals;
  std::signal(SIGPIPE, SIG_IGN);
  options.lorax.apply();
  options.server.tenant_api_keys = parse_tenant_keys(options);
  options.http.apply(options.server);
  const ModelInfo model = read_model(options.model);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(options.model.model_id);
  const ChatTemplate chat_template = ChatTemplate::load(options.model.model_id, options.tokenizer_config_path);
  check_vocabulary(*tokenizer, model);
  const Limits limits = resolve_limits(options, model);

  LocalSource source{std::filesystem::path(options.model.adapter_dir)};
  const std::int64_t host_bytes = parse_bytes("--adapter-host-memory", options.adapter_host_memory);
  ServedSources sources(options.sources, source, host_bytes);
  EngineOptions sizes;
  sizes.served_positions = limits.max_total_tokens;
  sizes.vocab_limit = tokenizer->vocab_size();
  sizes.max_step_tokens = options.max_batch_prefill_tokens > 0 ? options.max_batch_prefill_tokens : 512;
  sizes.max_sequences = std::min(options.max_sequences, sizes.max_step_tokens);
  sizes.show_progress = true;
  sizes.adapter_memory_fraction = options.adapter_memory_fraction;
  sizes.adapters = {
      .device_bytes = options.adapter_memory.empty() ? 0 : parse_bytes("--adapter-memory", options.adapter_memory),
      .host_bytes = host_bytes,
      .max_device_adapters = options.max_active_adapters};
  // A loader waits for what it fetches: slow downloads must not keep others from their files.
  if (sources.has_remote()) sizes.adapters.num_loader_threads = kLoadersOfRemote;
  Session session(options.model, sources.source(), sizes);
  ModelEngine& engine = session.engine();
  UsableAdapters adapters(
      source, [&engine](const std::filesystem::path& folder) { return check_adapter(folder, engine.lora_targets()); });
  const EngineInfo& info = engine.info();
  spdlog::info("{} on {}: {} weights, {:.2f} GiB cache of {} tokens, steps of up to {} tokens", model.name, info.device,
               info.dtype, static_cast<double>(engine.kv_cache_bytes()) / 0x1p30, info.num_blocks * kBlockSize,
               info.max_step_tokens);
  log_memory(engine.memory_plan());
  for (const std::string& id : options.preloaded_adapter_ids) {
    session.keep_adapter({.source = options.sources.source_of_preloaded(), .id = id});
  }
  const AdapterTierStats tiers = engine.adapter_stats().tiers;
  spdlog::info("adapters: {:.2f} GiB on the device, {} kept there, {:.2f} GiB in host memory",
               static_cast<double>(tiers.device_limit_bytes) / 0x1p30, tiers.device_adapters,
               static_cast<double>(tiers.host_limit_bytes) / 0x1p30);

  Scheduler scheduler(
      engine, session.wakeup(), tokenizer.get(),
      {.max_batch_prefill_tokens = info.max_step_tokens,
       .max_concurrent_requests = options.server.max_concurrent_requests,
       .max_queue = options.max_queue < 0 ? std::nullopt : std::optional(options.max_queue),
       .max_requests_per_tenant =
           options.max_requests_per_tenant == 0 ? std::nullopt : std::optional(options.max_requests_per_tenant),
       .request_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.request_timeout_s * 1e3)),
       .max_total_tokens = limits.max_total_tokens,
       .adapter_cycle_time = std::chrono::milliseconds(static_cast<std::int64_t>(options.adapter_cycle_time_s * 1e3)),
       .block_order = block_order_from_environment(),
       .prefix_caching = options.prefix_caching});
  options.server.default_adapter_source = options.sources.source_of_requests();
  options.server.adapter_sources = options.sources.served();
  const bool has_adapters = !options.model.adapter_dir.empty() || sources.has_remote();
  if (!has_adapters) options.server.max_runtime_adapters = 0;
  options.server.http.hostname = options.hostname;
  options.server.http.port = options.port;
  options.server.version = SHOAL_VERSION;
  options.server.max_input_length = limits.max_input_length;
  options.server.max_total_tokens = limits.max_total_tokens;
  options.server.max_batch_total_tokens = info.num_blocks * kBlockSize;
  Server server(options.server,
                {.scheduler = scheduler,
                 .tokenizer = *tokenizer,
                 .chat_template = chat_template.has_template() ? &chat_template : nullptr,
                 .engine = info,
                 .model_id = options.model.model_id,
                 .list_adapters = [&adapters] { return adapters.list(); },
                 .adapter_stats = [&engine] { return engine.adapter_stats(); },
                 .adapter_version = [&engine](const AdapterKey& key) { return engine.adapter_version(key); },
                 .forget_adapter = [&engine](const AdapterKey& key) { engine.forget_adapter(key); },
                 .adapter_folder = [&source](const AdapterKey& key) { return source.fetch(key); }});
  signals.wait_for_drain();
  drain(server, scheduler);
  sources.stop();
  return 0;
}

}  // namespace

Command add_serve_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "the HTTP server");
  auto options = std::make_shared<ServeOptions>();
  options->model.add_to(*command);
  command->add_option("--hostname", options->hostname, "address to listen on")
      ->check(some_text())
      ->capture_default_str();
  command->add_option("-p,--port", options->port, "port; 0 takes any free one")
      ->envname("PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--tokenizer-config-path", options->tokenizer_config_path,
                   "file to read in place of the model's tokenizer_config.json")
      ->check(CLI::ExistingFile)
      ->envname("TOKENIZER_CONFIG_PATH");
  command->add_flag("--json-output", options->json_output, "log in JSON")->envname("JSON_OUTPUT");
  add_limits(*command, *options);
  add_admission_flags(*command, *options);
  add_adapter_flags(*command, *options);
  options->http.add_to(*command);
  options->lorax.add_to(*command);
  return [options] { return run_serve(*options); };
}

}  // namespace shoal
