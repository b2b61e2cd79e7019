// The OpenAPI document against the routes that there are.
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <set>

#include "server/router.h"
#include "server/test_service.h"

namespace shoal {
namespace {

using test::get;
using test::json_of;
using test::RawResponse;
using test::TestService;

std::string without_id(const std::string& path) { return path.substr(0, path.find('{')); }

TEST(OpenApi, DescribesEachRouteAndNoOther) {
  const auto document = json_of(std::string(kOpenApiDocument));
  std::set<std::pair<std::string, std::string>> described;
  std::set<std::string> ids;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      described.emplace(method, without_id(path));
      EXPECT_TRUE(ids.insert(operation["operationId"].get<std::string>()).second) << "an id twice: " << operation;
      EXPECT_EQ(method == "post", operation.contains("requestBody")) << path;
    }
  }
  const auto routes = list_routes();
  EXPECT_EQ(described, (std::set<std::pair<std::string, std::string>>(routes.begin(), routes.end())));
}

void collect_references(const OutputJson& json, std::set<std::string>& references) {
  for (const auto& [key, value] : json.items()) {
    if (key == "$ref") references.insert(value.get<std::string>());
    if (value.is_structured()) collect_references(value, references);
  }
}

TEST(OpenApi, EveryReferenceLeadsSomewhereAndAllPartsAreUsed) {
  const auto document = json_of(std::string(kOpenApiDocument));
  std::set<std::string> references;
  collect_references(document, references);
  std::set<std::string> parts;
  for (const char* kind : {"schemas", "responses"}) {
    for (const auto& [name, part] : document["components"][kind].items()) {
      parts.insert(std::string("#/components/") + kind + "/" + name);
    }
  }
  parts.erase("#/components/schemas/StreamResponse");  // of events, which OpenAPI cannot describe
  references.erase("#/components/schemas/StreamResponse");
  EXPECT_EQ(references, parts);
}

TEST(OpenApi, IsServedToEverybodyWithAPageThatShowsIt) {
  ServerOptions options;
  options.api_key = "secret";
  TestService service({}, options);
  const RawResponse document = get(service.port(), "/api-doc/openapi.json");
  EXPECT_EQ(document.status, 200);
  EXPECT_EQ(document.headers.at("content-type"), "application/json");
  EXPECT_EQ(document.body, kOpenApiDocument);
  EXPECT_EQ(json_of(document.body)["info"]["version"].get<std::string>().find('@'), std::string::npos);
  const RawResponse page = get(service.port(), "/docs");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_NE(page.body.find("api-doc/openapi.json"), std::string::npos);
}

}  // namespace
}  // namespace shoal
