// Router: method and path to endpoint, and what every route shares: CORS, API key, content type, JSON. Used by
// server.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/context.h"

namespace shoal {

void route(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer);

// Method and path of each route, as the OpenAPI document names them but for `{id}` at the end of a path.
std::vector<std::pair<std::string, std::string>> list_routes();

// Answers a request that could not be read, in the style of its path.
void route_fault(ServerContext& context, int status, const HttpRequest& request, const ResponseWriter& writer);

}  // namespace shoal
