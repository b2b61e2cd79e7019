// What the server says about itself: /health, /ping, /info, /v1/models, /metrics.
#include <fmt/format.h>

#include <algorithm>

#include "server/adapter_names.h"
#include "server/context.h"
#include "server/http_format.h"

namespace shoal {

namespace {

constexpr auto kAdapterListAge = std::chrono::seconds(2);

void send_json(const ResponseWriter& writer, const OutputJson& json) {
  writer.send(200, {{"content-type", "application/json"}}, to_text(json));
}

OutputJson model_json(const ServerContext& context, const std::string& id, const std::string& root) {
  OutputJson json;
  json["id"] = id;
  json["object"] = "model";
  json["created"] = 0;
  json["owned_by"] = "shoal";
  if (id != context.services.model_id) json["parent"] = context.services.model_id;
  if (!root.empty()) json["root"] = root;
  return json;
}

// Of those that are listed, which lie in the adapter folder.
std::vector<std::string> usable_adapters(ServerContext& context, const Caller& caller) {
  std::vector<std::string> ids = context.adapters.ids();
  std::erase_if(ids, [&](const std::string& id) { return !caller.may_use({.source = "local", .id = id}); });
  return ids;
}

// What is told of models: each id once, and for a name its path.
using ModelRoots = std::vector<std::pair<std::string, std::string>>;

// The base model, what lies in the adapter folder, and what was loaded under a name.
ModelRoots list_models(ServerContext& context, const Caller& caller) {
  ModelRoots models = {{context.services.model_id, ""}};
  const auto names = usable_names(context, caller);  // sorted
  for (std::string& id : usable_adapters(context, caller)) {
    const auto at = std::lower_bound(names.begin(), names.end(), id,
                                     [](const auto& each, const std::string& wanted) { return each.first < wanted; });
    if (at == names.end() || at->first != id) models.emplace_back(std::move(id), "");
  }
  for (const auto& [name, target] : names) models.emplace_back(name, path_of(context, target));
  return models;
}

// LoRAX names dtypes as torch does.
std::string torch_dtype(const std::string& dtype) { return "torch." + dtype; }

}  // namespace

std::vector<std::string> AdapterList::ids() {
  if (!list_) return {};
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (read_at_ == std::chrono::steady_clock::time_point{} || now - read_at_ >= kAdapterListAge) {
    ids_ = list_();
    read_at_ = now;
  }
  return ids_;
}

void handle_health(ServerContext& context, const HttpRequest& /*request*/, const ResponseWriter& writer,
                   const Caller& /*caller*/) {
  const char* fault = nullptr;
  if (!context.ready) {
    fault = "the server is shutting down";
  } else if (!context.services.scheduler.making_progress(context.options.progress_limit)) {
    fault = "requests run, but no step has ended for too long";
  }
  if (fault == nullptr) {
    writer.send(200, {}, "");
  } else {
    send_error(writer, {.failure = Failure::kUnhealthy, .message = fault, .param = {}}, ApiStyle::kNative);
  }
}

void handle_info(ServerContext& context, const HttpRequest& /*request*/, const ResponseWriter& writer,
                 const Caller& /*caller*/) {
  const ServerOptions& options = context.options;
  const EngineInfo& engine = context.services.engine;
  OutputJson json;
  json["model_id"] = context.services.model_id;
  json["model_sha"] = nullptr;
  json["model_dtype"] = torch_dtype(engine.dtype);
  json["model_device_type"] = engine.device.substr(0, engine.device.find('/'));
  json["model_pipeline_tag"] = nullptr;
  json["max_concurrent_requests"] = options.max_concurrent_requests;
  json["max_best_of"] = options.max_best_of;
  json["max_stop_sequences"] = options.max_stop_sequences;
  json["max_input_length"] = options.max_input_length;
  json["max_total_tokens"] = options.max_total_tokens;
  json["waiting_served_ratio"] = 0.0F;
  json["max_batch_total_tokens"] = options.max_batch_total_tokens;
  json["max_waiting_tokens"] = 0;
  json["validation_workers"] = options.http.num_threads;
  json["eager_prefill"] = true;
  json["version"] = options.version;
  json["sha"] = nullptr;
  json["docker_label"] = nullptr;
  json["request_logger_url"] = nullptr;
  send_json(writer, json);
}

void handle_metrics(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                    const Caller& /*caller*/) {
  const SchedulerStats stats = context.services.scheduler.stats();
  std::optional<AdapterStats> adapters;
  if (context.services.adapter_stats) adapters = context.services.adapter_stats();
  const std::string_view accept = request.header("accept").value_or("");
  const bool wants_json = accept.find("application/json") != std::string_view::npos ||
                          request.query.find("format=json") != std::string::npos;
  if (wants_json) {
    writer.send(200, {{"content-type", "application/json"}}, context.metrics.json(stats, adapters));
  } else {
    writer.send(200, {{"content-type", "text/plain; version=0.0.4"}}, context.metrics.text(stats, adapters));
  }
}

void handle_models(ServerContext& context, const HttpRequest& /*request*/, const ResponseWriter& writer,
                   const Caller& caller) {
  OutputJson json;
  json["object"] = "list";
  json["data"] = OutputJson::array();
  for (const auto& [id, root] : list_models(context, caller)) json["data"].push_back(model_json(context, id, root));
  send_json(writer, json);
}

void handle_model(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                  const Caller& caller) {
  const std::string id = percent_decode(request.path.substr(std::string_view("/v1/models/").size()));
  const ModelRoots models = list_models(context, caller);
  const auto found = std::find_if(models.begin(), models.end(), [&](const auto& each) { return each.first == id; });
  if (found != models.end()) {
    send_json(writer, model_json(context, found->first, found->second));
  } else {
    send_error(writer,
               {.failure = Failure::kModelNotFound, .message = fmt::format("no model '{}'", id), .param = "model"},
               ApiStyle::kOpenAi);
  }
}

}  // namespace shoal
