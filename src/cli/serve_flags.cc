#include "cli/serve_flags.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "cli/options.h"
#include "core/result.h"

namespace shoal {
namespace {

constexpr std::int64_t kDefaultContext = 4096;

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
  command.add_option("--watermark-gamma", options.server.watermark_gamma, "share of green tokens of a watermark")
      ->envname("WATERMARK_GAMMA")
      ->check(number_between(0.001, 0.999))
      ->capture_default_str();
  command
      .add_option("--watermark-delta", options.server.watermark_delta, "what is added to the logits of green tokens")
      ->envname("WATERMARK_DELTA")
      ->check(number_between(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--max-input-length", options.max_input_length, "prompt tokens (default: max-total-tokens - 1)")
      ->envname("MAX_INPUT_LENGTH")
      ->check(at_least(1));
  command
      .add_option("--max-total-tokens", options.max_total_tokens,
                  "prompt and answer (default: the model's positions, 4096 and the cache at most)")
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
      ->check(number_between(0.001, 1e6));
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
      ->check(number_between(0.0, 0.9))
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
      ->check(number_between(0.0, 3600.0))
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

}  // namespace

void ServeOptions::add_to(CLI::App& command) {
  model.add_to(command);
  command.add_option("--hostname", hostname, "address to listen on")->check(some_text())->capture_default_str();
  command.add_option("-p,--port", port, "port; 0 takes any free one")
      ->envname("PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      .add_option("--tokenizer-config-path", tokenizer_config_path,
                  "file to read in place of the model's tokenizer_config.json")
      ->check(CLI::ExistingFile)
      ->envname("TOKENIZER_CONFIG_PATH");
  command.add_flag("--json-output", json_output, "log in JSON")->envname("JSON_OUTPUT");
  add_limits(command, *this);
  add_admission_flags(command, *this);
  add_adapter_flags(command, *this);
  http.add_to(command);
  lorax.add_to(command);
}

// TENANT=KEY, up to the first '='.
std::vector<TenantApiKey> ServeOptions::tenant_keys() const {
  std::vector<TenantApiKey> keys;
  for (const std::string& text : tenant_api_keys) {
    const std::size_t mark = text.find('=');
    if (mark == std::string::npos || mark == 0 || mark + 1 == text.size()) {
      throw UsageError("--tenant-api-key: expected TENANT=KEY");  // not what was found: it may hold the secret
    }
    TenantApiKey added{.tenant = text.substr(0, mark), .key = text.substr(mark + 1)};
    const bool taken = added.key == server.api_key ||
                       std::any_of(keys.begin(), keys.end(), [&](const auto& each) { return each.key == added.key; });
    if (taken) throw UsageError(fmt::format("--tenant-api-key: the key of tenant '{}' is given twice", added.tenant));
    keys.push_back(std::move(added));
  }
  return keys;
}

namespace {

Limits with_total(std::int64_t max_total_tokens, const ServeOptions& options) {
  Limits limits{.max_input_length = options.max_input_length > 0 ? options.max_input_length : max_total_tokens - 1,
                .max_total_tokens = max_total_tokens};
  if (limits.max_input_length >= limits.max_total_tokens) {
    throw UsageError(fmt::format("--max-input-length is {}, expected less than the {} of --max-total-tokens",
                                 limits.max_input_length, limits.max_total_tokens));
  }
  return limits;
}

}  // namespace

Limits resolve_limits(const ServeOptions& options, const ModelInfo& model) {
  const std::int64_t total =
      options.max_total_tokens > 0 ? options.max_total_tokens : std::min(model.max_positions, kDefaultContext);
  check_positions("--max-total-tokens", total, model);
  if (total < 2) {
    throw StartError(
        fmt::format("the model has {} position, expected 2: a token of the prompt and one of the answer", total));
  }
  return with_total(total, options);
}

Limits fit_to_cache(const Limits& limits, const ServeOptions& options, std::int64_t cache_tokens) {
  if (limits.max_total_tokens <= cache_tokens) return limits;
  if (options.max_total_tokens > 0) {
    throw UsageError(
        fmt::format("--max-total-tokens is {}, expected at most the {} tokens that the cache holds: give it more with "
                    "--kv-cache-memory",
                    options.max_total_tokens, cache_tokens));
  }
  spdlog::warn("the cache holds {} tokens: texts may have as many, not {}; --kv-cache-memory gives it more",
               cache_tokens, limits.max_total_tokens);
  return with_total(cache_tokens, options);
}

}  // namespace shoal
