// ServeOptions: all flags of `shoal serve`, and the lengths that follow from them and the model. Used by `serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/adapter_flags.h"
#include "cli/http_flags.h"
#include "cli/lorax_flags.h"
#include "cli/session.h"
#include "server/server_options.h"

namespace shoal {

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

  void add_to(CLI::App& command);
  // Of --tenant-api-key; UsageError where one is no TENANT=KEY, or a key stands there twice.
  std::vector<TenantApiKey> tenant_keys() const;
};

struct Limits {
  std::int64_t max_input_length = 0;
  std::int64_t max_total_tokens = 0;
};

// Lengths that were not given follow the model; those that were must fit it and each other: UsageError.
Limits resolve_limits(const ServeOptions& options, const ModelInfo& model);

// No text is longer than the cache: lengths that were not given are cut to its tokens, with a warning, and one that was
// must fit: UsageError.
Limits fit_to_cache(const Limits& limits, const ServeOptions& options, std::int64_t cache_tokens);

}  // namespace shoal
