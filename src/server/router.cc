#include "server/router.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>

#include "server/access_log.h"
#include "server/adapter_names.h"
#include "server/http_format.h"

namespace shoal {

namespace {

using GetHandler = void (*)(ServerContext&, const HttpRequest&, const ResponseWriter&, const Caller&);
using PostHandler = void (*)(ServerContext&, const JsonCall&);

struct Route {
  std::string_view path;  // one that ends in '/' and is longer stands for all paths below it
  GetHandler get;         // null: not allowed
  PostHandler post;
  bool open;  // needs no API key
};

constexpr std::array<Route, 23> kRoutes = {{
    {"/", handle_health, handle_compat_generate, false},
    {"/invocations", nullptr, handle_compat_generate, false},
    {"/generate", nullptr, handle_generate, false},
    {"/generate_stream", nullptr, handle_generate_stream, false},
    {"/v1/completions", nullptr, handle_completions, false},
    {"/v1/chat/completions", nullptr, handle_chat, false},
    {"/embed", nullptr, handle_embed, false},
    {"/v1/embeddings", nullptr, handle_embeddings, false},
    {"/tokenize", nullptr, handle_tokenize, false},
    {"/detokenize", nullptr, handle_detokenize, false},
    {"/classify", nullptr, handle_classify, false},
    {"/classify_batch", nullptr, handle_classify, false},
    {"/v1/models", handle_models, nullptr, false},
    {"/v1/models/", handle_model, nullptr, false},
    {"/v1/load_lora_adapter", nullptr, handle_load_adapter, false},
    {"/v1/unload_lora_adapter", nullptr, handle_unload_adapter, false},
    {"/health", handle_health, nullptr, true},
    {"/ping", handle_health, nullptr, true},
    {"/startup", handle_startup, nullptr, false},
    {"/info", handle_info, nullptr, false},
    {"/metrics", handle_metrics, nullptr, true},
    {"/api-doc/openapi.json", handle_openapi, nullptr, true},
    {"/docs", handle_docs, nullptr, true},
}};

const Route* find_route(std::string_view path) {
  for (const Route& candidate : kRoutes) {
    if (candidate.path == path) return &candidate;
    const bool is_folder = candidate.path.size() > 1 && candidate.path.back() == '/';
    if (is_folder && path.size() > candidate.path.size() && path.starts_with(candidate.path)) return &candidate;
  }
  return nullptr;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// What browsers need to hear on every answer; empty when the origin may not ask.
HttpHeaders cors_headers(const CorsOptions& cors, const HttpRequest& request) {
  HttpHeaders headers;
  const std::string origin(request.header("origin").value_or(""));
  if (origin.empty()) return headers;
  if (cors.allow_origins.empty()) {
    headers.emplace_back("access-control-allow-origin", "*");
  } else {
    headers.emplace_back("vary", "origin");
    const auto& allowed = cors.allow_origins;
    if (std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return headers;
    headers.emplace_back("access-control-allow-origin", origin);
    if (cors.allow_credentials) headers.emplace_back("access-control-allow-credentials", "true");
  }
  if (!cors.expose_headers.empty()) headers.emplace_back("access-control-expose-headers", join(cors.expose_headers));
  return headers;
}

// application/json and application/*+json, with any parameters.
bool is_json(std::string_view content_type) {
  std::string type = lower_case(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"));
}

std::string allowed_methods(const Route& entry) {
  std::string methods;
  if (entry.get != nullptr) methods = "GET,HEAD";
  if (entry.post != nullptr) methods += methods.empty() ? "POST" : ",POST";
  return methods;
}

void answer_preflight(const ServerContext& context, const ResponseWriter& writer) {
  const CorsOptions& cors = context.options.cors;
  writer.send(200,
              {{"access-control-allow-methods", join(cors.allow_methods)},
               {"access-control-allow-headers", join(cors.allow_headers)},
               {"access-control-max-age", "600"}},
              "");
}

// A call that waits until the files of its adapter's texts were read.
struct HeldCall {
  HttpRequest request;
  InputJson body;
  std::chrono::steady_clock::time_point received;
  Caller caller;

  JsonCall call(const ResponseWriter& writer) const {
    return {.request = request, .body = body, .writer = writer, .received = received, .caller = caller};
  }
};

void route_post(ServerContext& context, const Route& entry, const HttpRequest& request, const ResponseWriter& writer,
                const Caller& caller) {
  const auto received = std::chrono::steady_clock::now();
  const ApiStyle style = style_of_path(request.path);
  const auto fail = [&](Failure failure, std::string message) {
    context.metrics.count_failure(failure_row(failure).metric);
    send_error(writer, {.failure = failure, .message = std::move(message), .param = {}}, style);
  };
  if (!is_json(request.header("content-type").value_or(""))) {
    fail(Failure::kMediaType, "expected a request with `content-type: application/json`");
    return;
  }
  auto parsed = parse_json(request.body);
  if (const auto* fault = std::get_if<JsonFault>(&parsed)) {
    fail(Failure::kMalformed, "the body is not valid JSON: " + fault->message);
    return;
  }
  auto& body = std::get<InputJson>(parsed);
  if (const auto adapter = texts_to_read(context, caller, body)) {
    const auto held = std::make_shared<const HeldCall>(
        HeldCall{.request = request, .body = std::move(body), .received = received, .caller = caller});
    const bool waits = context.text_reader.read(*adapter, [&context, writer, post = entry.post, held] {
      writer.post([&context, writer, post, held] {
        if (!writer.closed()) post(context, held->call(writer));
      });
    });
    if (!waits) entry.post(context, held->call(writer));
    return;
  }
  entry.post(context, {.request = request, .body = body, .writer = writer, .received = received, .caller = caller});
}

void name_request(const HttpRequest& request, const ResponseWriter& writer) {
  const std::string id = request_id_of(request);
  spdlog::debug("{} {} from {}, request {}", request.method, request.path, request.peer, id);
  writer.add_headers({{"x-request-id", id}});
  writer.note("request_id", id);
}

}  // namespace

void route(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer) {
  const ApiStyle style = style_of_path(request.path);
  name_request(request, writer);
  writer.add_headers(cors_headers(context.options.cors, request));
  const Route* entry = find_route(request.path);
  if (entry == nullptr) {
    send_error(writer, {.failure = Failure::kNoRoute, .message = "no such path", .param = {}}, style);
    return;
  }
  if (request.method == "OPTIONS") {
    answer_preflight(context, writer);
    return;
  }
  std::variant<Caller, ApiError> caller;
  if (!entry->open) caller = find_caller(context.api_keys, request);
  if (const auto* error = std::get_if<ApiError>(&caller)) {
    const bool unknown = error->failure == Failure::kUnauthorized;
    send_error(writer, *error, style, unknown ? HttpHeaders{{"www-authenticate", "Bearer"}} : HttpHeaders{});
    return;
  }
  writer.note("tenant", std::get<Caller>(caller).tenant);
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (reads && entry->get != nullptr) {
    entry->get(context, request, writer, std::get<Caller>(caller));
  } else if (request.method == "POST" && entry->post != nullptr) {
    route_post(context, *entry, request, writer, std::get<Caller>(caller));
  } else {
    send_error(writer, {.failure = Failure::kWrongMethod, .message = "method not allowed", .param = {}}, style,
               {{"allow", allowed_methods(*entry)}});
  }
}

std::vector<std::pair<std::string, std::string>> list_routes() {
  std::vector<std::pair<std::string, std::string>> routes;
  for (const Route& each : kRoutes) {
    if (each.get != nullptr) routes.emplace_back("get", each.path);
    if (each.post != nullptr) routes.emplace_back("post", each.path);
  }
  return routes;
}

void route_fault(ServerContext& context, int status, const HttpRequest& request, const ResponseWriter& writer) {
  ApiError error = {.failure = Failure::kMalformed, .message = "the request is not valid HTTP", .param = {}};
  if (status == 408) error = {.failure = Failure::kTimedOut, .message = "the request took too long", .param = {}};
  if (status == 413) {
    error = {.failure = Failure::kTooLarge,
             .message = fmt::format("the body is larger than {} bytes", context.options.http.max_body_bytes),
             .param = {}};
  }
  if (status == 431) error = {.failure = Failure::kHeadersTooLarge, .message = "the headers are too long", .param = {}};
  if (status == 500) error = {.failure = Failure::kInternal, .message = "internal server error", .param = {}};
  if (status == 503) error = {.failure = Failure::kCrowded, .message = "too many connections are open", .param = {}};
  if (status == 505) {
    error = {.failure = Failure::kHttpVersion, .message = "only HTTP/1.0 and HTTP/1.1 are spoken", .param = {}};
  }
  context.metrics.count_failure(failure_row(error.failure).metric);
  // A handler that threw has had its headers.
  if (status != 500) {
    name_request(request, writer);
    writer.add_headers(cors_headers(context.options.cors, request));
  }
  send_error(writer, error, style_of_path(request.path));
}

}  // namespace shoal
