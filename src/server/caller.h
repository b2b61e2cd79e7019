// Caller: who sent a request, by API key or header, and what it may use. Used by the router and the generate endpoints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "core/adapter_key.h"
#include "server/api_keys.h"
#include "server/errors.h"
#include "server/http_server.h"
#include "server/server_options.h"

namespace shoal {

struct Caller {
  std::string tenant;                                 // "": none named
  std::shared_ptr<const AdapterRules> adapters = {};  // null: all; shared with the keys, which may be replaced

  bool may_use(const AdapterKey& adapter) const { return !forbidden_id(adapter); }
  // The adapter that it may not use, of a merge the first of its members.
  std::optional<std::string> forbidden_id(const AdapterKey& adapter) const;
};

// What a caller is told of an adapter that it may not use: the same as of one that is not there.
ApiError adapter_not_there(const std::string& id);

// The keys of the flags and the file. UsageError's kind, one given twice, is checked in cli/; StartError is the file's.
ApiKeys::Options api_key_options(const ServerOptions& options);

// Where keys are asked for, one of them must be given, or the answer is kUnauthorized. A key of a tenant speaks for
// that tenant alone, whatever `x-shoal-tenant` says; otherwise the header names the tenant, and no tenant of a key can
// be named so.
std::variant<Caller, ApiError> find_caller(const ApiKeys& keys, const HttpRequest& request);

// The bearer token of a request, for the hub: where this server asks for keys of its own it is one of those, and what
// OpenAI clients send in place of a key is none of the hub's. "" then.
std::string hub_token_of(const ApiKeys& keys, const HttpRequest& request);

}  // namespace shoal
