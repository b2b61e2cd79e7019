#include "server/adapter_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "server/field_reader.h"
#include "server/http_format.h"

namespace shoal {
namespace {

std::optional<ApiError> resolve_members(ServerContext& context, const Caller& caller, ChosenAdapter& chosen) {
  AdapterKey& key = *chosen.key;
  for (std::string& id : key.merge->ids) {
    const std::optional<RuntimeAdapter> named = context.runtime_adapters.find(caller.tenant, id);
    if (!named) continue;
    if (!caller.may_use(named->target)) {
      chosen.forbidden_id = id;
      return std::nullopt;
    }
    // The token, the rules and the cache of a merge are of one source.
    if (named->target.source != key.source) {
      return ApiError{.failure = Failure::kAdapterInvalid,
                      .message = fmt::format("adapter '{}' was loaded from the source {}, the merge is of {}", id,
                                             named->target.source, key.source),
                      .param = "merged_adapters.ids"};
    }
    chosen.leases.push_back(named->lease);
    id = named->target.id;
  }
  key.id = fmt::format("{}", fmt::join(key.merge->ids, ","));
  return std::nullopt;
}

std::optional<ApiError> resolve_names(ServerContext& context, const Caller& caller, ChosenAdapter& chosen) {
  AdapterKey& key = *chosen.key;
  chosen.forbidden_id = caller.forbidden_id(key);
  if (chosen.forbidden_id || key.source != context.options.default_adapter_source) return std::nullopt;
  if (key.merge) return resolve_members(context, caller, chosen);
  std::optional<RuntimeAdapter> named = context.runtime_adapters.find(caller.tenant, key.id);
  if (!named) return std::nullopt;
  if (!caller.may_use(named->target)) {
    chosen.forbidden_id = key.id;
    return std::nullopt;
  }
  chosen.leases.push_back(std::move(named->lease));
  key = std::move(named->target);
  key.api_token.clear();
  chosen.shown->source = key.source;
  return std::nullopt;
}

}  // namespace

Parsed<ChosenAdapter> choose_adapter(ServerContext& context, const JsonCall& call,
                                     const GenerateParameters& parameters) {
  ChosenAdapter chosen;
  chosen.texts = context.texts.base();
  chosen.key = chosen.shown = adapter_of(parameters, context.options);
  if (!chosen.key) return chosen;
  if (auto error = resolve_names(context, call.caller, chosen)) return *error;
  if (chosen.forbidden_id) return chosen;
  chosen.has_name = !chosen.leases.empty();
  AdapterKey& key = *chosen.key;
  if (key.source == "hub") {
    const std::string token = parameters.api_token.value_or("");
    key.api_token = token.empty() ? hub_token_of(context.api_keys, call.request) : token;
  }
  if (!chosen.has_name) context.runtime_adapters.note_direct_use(key);
  AdapterTexts::Found texts = context.texts.find(key);
  if (!texts.ok()) {
    ApiError error = to_api_error(texts.error());
    error.message = fmt::format("adapter '{}': {}", chosen.shown->id, error.message);
    return error;
  }
  chosen.texts = std::move(texts.value());
  return chosen;
}

namespace {

// The text in a field, "" where there is none.
std::string text_in(const InputJson& json, const char* name) {
  const auto field = json.is_object() ? json.find(name) : json.end();
  return field != json.end() && field->is_string() ? field->get<std::string>() : "";
}

}  // namespace

std::optional<AdapterKey> texts_to_read(ServerContext& context, const Caller& caller, const InputJson& body) {
  const auto parameters = body.is_object() ? body.find("parameters") : body.end();
  const InputJson& named = parameters != body.end() && parameters->is_object() ? *parameters : body;
  std::string id = text_in(named, "adapter_id");
  if (id.empty()) id = text_in(body, "model");
  std::string source = lower_case(text_in(named, "adapter_source"));
  if (source.empty()) source = context.options.default_adapter_source;
  AdapterKey key{.source = std::move(source), .id = std::move(id)};
  if (const std::string path = text_in(body, "lora_path"); !path.empty()) key = key_of_path(context, path);
  if (key.id.empty() || key.id == context.services.model_id || !caller.may_use(key)) return std::nullopt;
  if (key.source == context.options.default_adapter_source) {
    if (auto loaded = context.runtime_adapters.find(caller.tenant, key.id)) key = std::move(loaded->target);
  }
  if (!caller.may_use(key) || !context.texts.must_read(key)) return std::nullopt;
  return key;
}

Parsed<std::shared_ptr<const Texts>> texts_of(ServerContext& context, const JsonCall& call) {
  std::optional<ApiError> error;
  GenerateParameters parameters;
  std::optional<std::string> model;
  FieldReader reader(call.body, "", error);
  reader.read("model", model);
  reader.read("adapter_id", parameters.adapter_id);
  reader.read("adapter_source", parameters.adapter_source);
  if (error) return *error;
  if (!parameters.adapter_id && model && *model != context.services.model_id) parameters.adapter_id = *std::move(model);
  if (auto fault = check_values(parameters, context.options)) return *fault;
  auto choice = choose_adapter(context, call, parameters);
  if (auto* fault = std::get_if<ApiError>(&choice)) return std::move(*fault);
  auto& chosen = std::get<ChosenAdapter>(choice);
  if (chosen.forbidden_id) return adapter_not_there(*chosen.forbidden_id);
  if (chosen.key && chosen.key->source == "local" && context.services.adapter_folder) {
    const auto folder = context.services.adapter_folder(*chosen.key);
    if (!folder.ok()) return to_api_error(folder.error());
  }
  return std::move(chosen.texts);
}

bool may_name_adapter(const ServerContext& context, const Caller& caller, const std::string& id) {
  const AdapterKey key = key_of_name(context, id);
  // What it may not use reads as what is not there.
  if (id.empty() || id == context.services.model_id || !caller.may_use(key)) return false;
  const auto named = context.runtime_adapters.find(caller.tenant, id);
  if (named) return caller.may_use(named->target);
  return context.services.adapter_version && context.services.adapter_version(key).signature != 0;
}

AdapterKey key_of_name(const ServerContext& context, const std::string& name) {
  return {.source = context.options.default_adapter_source, .id = name};
}

AdapterKey key_of_path(const ServerContext& context, const std::string& path) {
  if (path.starts_with("s3://")) return {.source = "s3", .id = path};
  if (path.starts_with('/')) return {.source = "local", .id = path};
  AdapterRules::Rule named = AdapterRules::parse_rule(path, context.options.default_adapter_source);
  return {.source = std::move(named.source), .id = std::move(named.pattern)};
}

std::string path_of(const ServerContext& context, const AdapterKey& target) {
  if (target.source == context.options.default_adapter_source) return target.id;
  return fmt::format("{}:{}", target.source, target.id);
}

std::vector<std::pair<std::string, AdapterKey>> usable_names(const ServerContext& context, const Caller& caller) {
  auto names = context.runtime_adapters.list(caller.tenant);
  std::erase_if(names, [&](const auto& each) {
    return !caller.may_use(key_of_name(context, each.first)) || !caller.may_use(each.second);
  });
  return names;
}

}  // namespace shoal
