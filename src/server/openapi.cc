// GET /api-doc/openapi.json and /docs.
#include "server/openapi.h"

#include "server/context.h"

namespace shoal {

void handle_openapi(ServerContext& /*context*/, const HttpRequest& /*request*/, const ResponseWriter& writer,
                    const Caller& /*caller*/) {
  writer.send(200, {{"content-type", "application/json"}}, std::string(kOpenApiDocument));
}

void handle_docs(ServerContext& /*context*/, const HttpRequest& /*request*/, const ResponseWriter& writer,
                 const Caller& /*caller*/) {
  // Of scripts and styles those in the page alone, and nothing from elsewhere.
  writer.send(200,
              {{"content-type", "text/html; charset=utf-8"},
               {"content-security-policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"}},
              std::string(kDocsPage));
}

}  // namespace shoal
