#include "server/adapter_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal {
namespace {

std::optional<ApiError> resolve_members(ServerContext& context, const Caller& caller, PreparedRequest& prepared) {
  AdapterKey& key = *prepared.request.adapter;
  for (std::string& id : key.merge->ids) {
    const std::optional<RuntimeAdapter> named = context.runtime_adapters.find(caller.tenant, id);
    if (!named) continue;
    if (!caller.may_use(named->target)) {
      prepared.forbidden_id = id;
      return std::nullopt;
    }
    // The token, the rules and the cache of a merge are of one source.
    if (named->target.source != key.source) {
      return ApiError{.failure = Failure::kAdapterInvalid,
                      .message = fmt::format("adapter '{}' was loaded from the source {}, the merge is of {}", id,
                                             named->target.source, key.source),
                      .param = "merged_adapters.ids"};
    }
    prepared.leases.push_back(named->lease);
    id = named->target.id;
  }
  key.id = fmt::format("{}", fmt::join(key.merge->ids, ","));
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> resolve_adapter_names(ServerContext& context, const Caller& caller, PreparedRequest& prepared) {
  if (!prepared.request.adapter) return std::nullopt;
  AdapterKey& key = *prepared.request.adapter;
  prepared.forbidden_id = caller.forbidden_id(key);
  if (prepared.forbidden_id) return std::nullopt;
  if (key.source == context.options.default_adapter_source) {
    if (key.merge) {
      if (auto error = resolve_members(context, caller, prepared)) return error;
    } else if (auto named = context.runtime_adapters.find(caller.tenant, key.id)) {
      if (!caller.may_use(named->target)) {
        prepared.forbidden_id = key.id;
        return std::nullopt;
      }
      prepared.leases.push_back(std::move(named->lease));
      key = std::move(named->target);
      key.api_token.clear();
      prepared.info.adapter->source = key.source;
    }
  }
  prepared.info.adapter_has_name = !prepared.leases.empty();
  return std::nullopt;
}

AdapterKey key_of_name(const ServerContext& context, const std::string& name) {
  return {.source = context.options.default_adapter_source, .id = name};
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
