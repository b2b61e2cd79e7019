// The OpenAPI document and the page that shows it, as CMake embeds them (openapi.json, docs_page.html). Used by
// openapi.cc.
#pragma once

#include <string_view>

namespace shoal {

extern const std::string_view kOpenApiDocument;
extern const std::string_view kDocsPage;

}  // namespace shoal
