// POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's fields: names for adapters, given while the
// server runs. A load is a request of its own to the scheduler, which ends once the adapter was read and checked.
#include <fmt/format.h>

#include <memory>

#include "server/adapter_names.h"
#include "server/field_reader.h"
#include "server/generation.h"

namespace shoal {

namespace {

using Replace = RuntimeAdapters::Replace;

struct LoadCall {
  std::string name;
  std::string path;  // as it was sent
  AdapterKey target;
  Replace replace = Replace::kNo;
};

// A load on its way.
struct Load {
  LoadCall call;
  std::string tenant;
  AdapterLease lease;  // until a name has it
};

ApiError invalid(std::string param, std::string message) {
  return {.failure = Failure::kValidation, .message = std::move(message), .param = std::move(param)};
}

void require_text(FieldReader& reader, std::optional<ApiError>& error, const char* name, std::string& out) {
  reader.read(name, out, Presence::kRequired);
  if (!error && out.empty()) error = invalid(name, fmt::format("`{}` must not be empty", name));
}

Parsed<LoadCall> parse_load(const ServerContext& context, const JsonCall& call) {
  std::optional<ApiError> error;
  LoadCall load;
  FieldReader reader(call.body, "", error);
  require_text(reader, error, "lora_name", load.name);
  require_text(reader, error, "lora_path", load.path);
  std::optional<bool> in_place;
  std::optional<std::string> token;
  reader.read("load_inplace", in_place);
  reader.read("api_token", token);
  if (error) return *error;
  if (auto fault = check_adapter_id(load.name, "lora_name")) return *fault;
  if (auto fault = check_adapter_id(load.path, "lora_path")) return *fault;
  if (auto fault = check_api_token(token.value_or(""))) return *fault;
  load.replace = in_place.value_or(false) ? Replace::kYes : Replace::kNo;
  load.target = key_of_path(context, load.path);
  if (auto fault = check_adapter_source(load.target.source, context.options, "lora_path")) return *fault;
  if (load.target.id.empty()) return invalid("lora_path", fmt::format("`lora_path` '{}' names no adapter", load.path));
  if (load.target.source == "hub") {
    const std::string given = token.value_or("");
    load.target.api_token = given.empty() ? hub_token_of(context.api_keys, call.request) : given;
  }
  return load;
}

// A name must stand for one thing: neither for the base model nor for an adapter that is there without it.
std::optional<ApiError> check_name(const ServerContext& context, const LoadCall& load) {
  if (load.name == context.services.model_id || load.name == kBaseModelId) {
    return invalid("lora_name", fmt::format("`lora_name` must not be that of the base model, given: '{}'", load.name));
  }
  const AdapterKey own = key_of_name(context, load.name);
  if (own.source == load.target.source && own.id == load.target.id) return std::nullopt;
  AdapterVersion there;
  if (context.services.adapter_version) there = context.services.adapter_version(own);
  const bool is_other = there.signature != 0 && there != context.services.adapter_version(load.target);
  if (is_other || (own.source == "hub" && load.name.find('/') != std::string::npos)) {
    return invalid("lora_name", fmt::format("`lora_name` '{}' is the id of another adapter of the source {}, expected "
                                            "a name that none has",
                                            load.name, own.source));
  }
  return std::nullopt;
}

std::optional<ApiError> error_of(const ServerContext& context, RuntimeAdapters::Added added, const std::string& tenant,
                                 const std::string& name) {
  if (added == RuntimeAdapters::Added::kAdded) return std::nullopt;
  if (added == RuntimeAdapters::Added::kTooMany) {
    return ApiError{.failure = Failure::kTooManyAdapters,
                    .message = fmt::format("'{}' is one name too many: {} may be loaded at once "
                                           "(--max-runtime-adapters); unload one first",
                                           name, context.options.max_runtime_adapters),
                    .param = "lora_name"};
  }
  const std::optional<RuntimeAdapter> taken = context.runtime_adapters.find(tenant, name);
  return ApiError{.failure = Failure::kAdapterLoaded,
                  .message = fmt::format("the LoRA adapter '{}' has already been loaded{}; with `load_inplace` it is "
                                         "loaded again",
                                         name, taken ? fmt::format(" from '{}'", path_of(context, taken->target)) : ""),
                  .param = "lora_name"};
}

std::optional<ApiError> check_load(const ServerContext& context, const Caller& caller, const LoadCall& load) {
  // First of all, so that it tells nothing of what is there.
  if (!caller.may_use(key_of_name(context, load.name))) return adapter_not_there(load.name);
  if (!caller.may_use(load.target)) return adapter_not_there(load.target.id);
  const std::optional<RuntimeAdapter> taken = context.runtime_adapters.find(caller.tenant, load.name);
  if (taken && !caller.may_use(taken->target)) return adapter_not_there(load.name);
  const auto added = context.runtime_adapters.would_add(caller.tenant, load.name, load.replace);
  if (auto error = error_of(context, added, caller.tenant, load.name)) return error;
  return check_name(context, load);
}

std::optional<ApiError> refuse_all(const ServerContext& context) {
  if (!context.ready) {
    return ApiError{.failure = Failure::kUnavailable, .message = "the server is shutting down", .param = {}};
  }
  if (context.options.max_runtime_adapters > 0) return std::nullopt;
  return ApiError{.failure = Failure::kNoRoute,
                  .message =
                      "names for adapters are not served here: that takes --adapter-dir or another source, and "
                      "--max-runtime-adapters above 0",
                  .param = {}};
}

bool has_name(const ServerContext& context, const Caller& caller, const std::string& name) {
  const std::optional<RuntimeAdapter> loaded = context.runtime_adapters.find(caller.tenant, name);
  return loaded && caller.may_use(key_of_name(context, name)) && caller.may_use(loaded->target);
}

void answer(const ResponseWriter& writer, const std::string& text) {
  writer.send(200, {{"content-type", "text/plain; charset=utf-8"}}, text);
}

ApiError cannot_load(ApiError error, const LoadCall& call) {
  if (error.failure != Failure::kAdapterNotFound && error.failure != Failure::kAdapterInvalid) return error;
  error.message = fmt::format("the LoRA adapter '{}' cannot be loaded: {}", call.name, error.message);
  error.param = "lora_path";
  return error;
}

GenerationSink sink_of(ServerContext& context, const ResponseWriter& writer, const std::shared_ptr<Load>& load) {
  GenerationSink sink;
  sink.on_token = [](const TokenEvent&) {};
  sink.on_finish = [&context, writer, load](const FinishEvent&) {
    const LoadCall& call = load->call;
    if (const auto texts = context.texts.find(call.target); !texts.ok()) {
      load->lease.reset();
      send_error(writer, cannot_load(to_api_error(texts.error()), call), ApiStyle::kOpenAi);
      return;
    }
    RuntimeAdapter adapter{.target = call.target, .lease = std::exchange(load->lease, nullptr)};
    const auto added = context.runtime_adapters.add(load->tenant, call.name, std::move(adapter), call.replace);
    if (auto error = error_of(context, added, load->tenant, call.name)) {
      send_error(writer, *error, ApiStyle::kOpenAi);
      return;
    }
    answer(writer, fmt::format("Success: the LoRA adapter '{}' was loaded from '{}'.", call.name, call.path));
  };
  sink.on_error = [writer, load](ApiError error) {
    load->lease.reset();
    send_error(writer, cannot_load(std::move(error), load->call), ApiStyle::kOpenAi);
  };
  return sink;
}

void start_load(ServerContext& context, const JsonCall& call, LoadCall parsed) {
  // What is in memory of it is read anew, once nobody uses it.
  const auto loaded = context.runtime_adapters.find(call.caller.tenant, parsed.name);
  if (loaded && loaded->target == parsed.target && context.services.forget_adapter) {
    context.services.forget_adapter(parsed.target);
  }
  PreparedRequest prepared;
  prepared.request.load_only = true;
  prepared.request.adapter = prepared.info.adapter = parsed.target;
  prepared.request.tenant = call.caller.tenant;
  prepared.info.received = prepared.info.validated = call.received;
  const auto load = std::make_shared<Load>(Load{.call = std::move(parsed), .tenant = call.caller.tenant, .lease = {}});
  load->lease = context.runtime_adapters.lease(load->call.target);
  const auto cancel =
      start_generation_part(context, call.writer, std::move(prepared), sink_of(context, call.writer, load));
  if (cancel == nullptr) return;
  const auto client_gone = [cancel, load] {
    cancel();
    load->lease.reset();
  };
  if (call.writer.closed()) {
    client_gone();
  } else {
    call.writer.on_close(client_gone);
  }
}

}  // namespace

void handle_load_adapter(ServerContext& context, const JsonCall& call) {
  const auto refuse_with = [&](const ApiError& error) { send_error(call.writer, error, ApiStyle::kOpenAi); };
  if (const auto error = refuse_all(context)) return refuse_with(*error);
  auto parsed = parse_load(context, call);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return refuse_with(*error);
  auto& load = std::get<LoadCall>(parsed);
  if (const auto error = check_load(context, call.caller, load)) return refuse_with(*error);
  start_load(context, call, std::move(load));
}

void handle_unload_adapter(ServerContext& context, const JsonCall& call) {
  const auto refuse_with = [&](const ApiError& error) { send_error(call.writer, error, ApiStyle::kOpenAi); };
  if (const auto error = refuse_all(context)) return refuse_with(*error);
  std::optional<ApiError> error;
  std::string name;
  std::optional<std::uint64_t> lora_int_id;  // vLLM's number of it, which nobody needs
  FieldReader reader(call.body, "", error);
  require_text(reader, error, "lora_name", name);
  reader.read("lora_int_id", lora_int_id);
  if (!error) error = check_adapter_id(name, "lora_name");
  if (error) return refuse_with(*error);
  // What it may not use reads as what is not there.
  if (!has_name(context, call.caller, name) || !context.runtime_adapters.remove(call.caller.tenant, name)) {
    return refuse_with(
        {.failure = Failure::kAdapterNotFound,
         .message = fmt::format("the LoRA adapter '{}' cannot be found: none was loaded under that name", name),
         .param = "lora_name"});
  }
  answer(call.writer, fmt::format("Success: the LoRA adapter '{}' was unloaded.", name));
}

}  // namespace shoal
