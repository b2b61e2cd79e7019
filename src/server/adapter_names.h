// What a request's adapter stands for: names that were loaded at run time become what they were loaded from. Used by
// generation.cc, info.cc and load_adapter.cc.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/context.h"
#include "server/validate.h"

namespace shoal {

// Names stand beside the ids of the default source, for those who loaded them alone. In `prepared`, whose adapter is as
// the request says: replaces names, notes leases, and forbidden_id where `caller` may not use a name or what it stands
// for. Errors: a merge of adapters from several sources.
std::optional<ApiError> resolve_adapter_names(ServerContext& context, const Caller& caller, PreparedRequest& prepared);

// The name as an adapter's key: what rules of API keys look at.
AdapterKey key_of_name(const ServerContext& context, const std::string& name);

// As `lora_path` says it: the source first, where that is not the default one.
std::string path_of(const ServerContext& context, const AdapterKey& target);

// Names that `caller` may use, and what they stand for.
std::vector<std::pair<std::string, AdapterKey>> usable_names(const ServerContext& context, const Caller& caller);

}  // namespace shoal
