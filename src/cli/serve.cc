// `shoal serve`: the HTTP server over one model.
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "cli/commands.h"
#include "cli/json_log.h"
#include "cli/serve_flags.h"
#include "cli/signal_watch.h"
#include "core/log.h"
#include "hub/usable_adapters.h"
#include "lora/adapter_check.h"
#include "server/server.h"

namespace shoal {
namespace {

constexpr std::chrono::seconds kDrainLimit{90};
constexpr int kLoadersOfRemote = 16;

void log_memory(const MemoryPlan& plan) {
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  spdlog::info("memory: {:.2f} GiB of weights, {:.2f} GiB for adapters, {:.2f} GiB of cache{}", gib(plan.weight_bytes),
               gib(plan.adapter_bytes), gib(plan.cache_bytes),
               plan.left_bytes > 0
                   ? fmt::format(", {:.2f} GiB scratch of steps; {:.2f} GiB free, {:.2f} of them for graphs",
                                 gib(plan.scratch_bytes), gib(plan.left_bytes), gib(plan.graph_bytes))
                   : "");
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
  options.server.tenant_api_keys = options.tenant_keys();
  options.http.apply(options.server);
  const ModelInfo model = read_model(options.model);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(options.model.model_id);
  const ChatTemplate chat_template = ChatTemplate::load(options.model.model_id, options.tokenizer_config_path);
  check_vocabulary(*tokenizer, model);
  Limits limits = resolve_limits(options, model);

  LocalSource source{std::filesystem::path(options.model.adapter_dir)};
  const std::int64_t host_bytes = parse_bytes("--adapter-host-memory", options.adapter_host_memory);
  ServedSources sources(options.sources, source, host_bytes, options.preloaded_adapter_ids);
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
  limits = fit_to_cache(limits, options, info.num_blocks * kBlockSize);
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
  options->add_to(*command);
  return [options] { return run_serve(*options); };
}

}  // namespace shoal
