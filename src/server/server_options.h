// ServerOptions and Services: what a Server is made from. Filled by cli/, read by every endpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/http_server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace shoal {

// Origins and headers that browsers may use; spec defaults let any page call the API.
struct CorsOptions {
  std::vector<std::string> allow_origins;  // empty: any
  std::vector<std::string> allow_methods = {"GET", "POST"};
  std::vector<std::string> allow_headers = {"content-type", "authorization"};
  std::vector<std::string> expose_headers;
  bool allow_credentials = false;
};

// Its bearer speaks for this tenant.
struct TenantApiKey {
  std::string tenant;
  std::string key;
};

struct ServerOptions {
  HttpServerOptions http;
  CorsOptions cors;
  std::string version = "0.1.0";
  std::string api_key;                        // of all tenants; "" and no others below: everybody may ask
  std::vector<TenantApiKey> tenant_api_keys;  // no two keys are equal
  std::filesystem::path api_key_file;         // more keys, which may change while the server runs; empty: none
  std::string access_log;                     // file of a JSON line an answer, "-" for stdout; "": none
  std::string default_adapter_source = "local";
  std::vector<std::string> adapter_sources = {"local"};  // those that are served
  std::int64_t max_runtime_adapters = 1024;              // names that one tenant may load; 0: the routes are not served
  std::int64_t max_concurrent_requests = 1024;           // shown by /info; the scheduler enforces it
  std::int64_t max_stop_sequences = 4;
  std::int64_t max_best_of = 2;                          // of the native routes
  float watermark_gamma = 0.5F;                          // share of green tokens, in (0, 1)
  float watermark_delta = 2.0F;                          // what the logits of green ones get
  std::int64_t max_input_length = 0;                     // tokens of a prompt
  std::int64_t max_total_tokens = 0;                     // prompt and answer
  std::int64_t max_batch_total_tokens = 0;               // shown by /info
  std::chrono::milliseconds large_answer_limit{60'000};  // to read an answer that others wait for
  std::chrono::milliseconds progress_limit{120'000};     // a step that takes longer makes /health red
};

struct Services {
  Scheduler& scheduler;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  EngineInfo engine;
  std::string model_id;                                     // as clients name the base model
  std::function<std::vector<std::string>()> list_adapters;  // that can be served; may be empty; any thread
  std::function<AdapterStats()> adapter_stats;              // may be empty; any thread
  // What lies at an adapter's source now, zeros for nothing; looks at files. May be empty; any thread.
  std::function<AdapterVersion(const AdapterKey&)> adapter_version = {};
  // Its memory is given back as soon as nobody uses it. May be empty; any thread.
  std::function<void(const AdapterKey&)> forget_adapter = {};
  // Where an adapter of the source local lies; looks at the folder alone. May be empty; any thread.
  std::function<Result<std::filesystem::path>(const AdapterKey&)> adapter_folder = {};
};

}  // namespace shoal
