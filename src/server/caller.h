// Caller: who sent a request, by API key or header. Used by the router and the generate endpoints.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "server/errors.h"
#include "server/http_server.h"
#include "server/server_options.h"

namespace shoal {

struct Caller {
  std::string tenant;  // "": none named
};

// Where keys are asked for, one of them must be given, or the answer is kUnauthorized. A key of a tenant speaks for
// that tenant alone, whatever `x-shoal-tenant` says; otherwise the header names the tenant, and no tenant of a key can
// be named so.
std::variant<Caller, ApiError> find_caller(const ServerOptions& options, const HttpRequest& request);

// The bearer token of a request, for the hub: where this server asks for keys of its own it is one of those, and what
// OpenAI clients send in place of a key is none of the hub's. "" then.
std::string hub_token_of(const ServerOptions& options, const HttpRequest& request);

}  // namespace shoal
