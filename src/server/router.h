// Router: method and path to endpoint, and what every route shares: CORS, API key, content type, JSON. Used by
// server.cc.
#pragma once

#include "server/context.h"

namespace shoal {

void route(ServerContext& context, HttpRequest request, const ResponseWriter& writer);

// Answers a request that could not be read, in the style of its path.
void route_fault(ServerContext& context, int status, const HttpRequest& request, const ResponseWriter& writer);

}  // namespace shoal
