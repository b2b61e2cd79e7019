#include "server/caller.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "server/http_format.h"

namespace shoal {
namespace {

constexpr std::string_view kTenantHeader = "x-shoal-tenant";
constexpr std::size_t kMaxTenantBytes = 128;
constexpr std::string_view kScheme = "bearer ";
constexpr std::string_view kHubToken = "hf_";  // what tokens of Hugging Face begin with

// "" when there is none.
std::string_view bearer_token(const HttpRequest& request) {
  const std::string_view given = request.header("authorization").value_or("");
  if (given.size() < kScheme.size() || lower_case(given.substr(0, kScheme.size())) != kScheme) return "";
  return given.substr(kScheme.size());
}

std::variant<Caller, ApiError> caller_of_header(const HttpRequest& request) {
  const std::string_view name = request.header(kTenantHeader).value_or("");
  if (name.empty()) return Caller{};
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (name.size() > kMaxTenantBytes || !printable) {
    return ApiError{.failure = Failure::kValidation,
                    .message = fmt::format("`{}` must be at most {} visible ASCII characters without spaces",
                                           kTenantHeader, kMaxTenantBytes),
                    .param = std::string(kTenantHeader)};
  }
  return Caller{.tenant = fmt::format("header/{}", name)};
}

}  // namespace

std::optional<std::string> Caller::forbidden_id(const AdapterKey& adapter) const {
  if (adapters == nullptr) return std::nullopt;
  for (const std::string& id : adapter.merge ? adapter.merge->ids : std::vector<std::string>{adapter.id}) {
    if (!adapters->allow(adapter.source, id)) return id;
  }
  return std::nullopt;
}

ApiError adapter_not_there(const std::string& id) {
  return {.failure = Failure::kAdapterNotFound, .message = fmt::format("adapter '{}' not found", id), .param = {}};
}

ApiKeys::Options api_key_options(const ServerOptions& options) {
  ApiKeys::Options keys{.file = options.api_key_file, .default_source = options.default_adapter_source};
  if (!options.api_key.empty()) keys.fixed.add(ApiKeySet::digest_of(options.api_key), {});
  for (const TenantApiKey& each : options.tenant_api_keys) {
    keys.fixed.add(ApiKeySet::digest_of(each.key), {.tenant = fmt::format("key/{}", each.tenant)});
  }
  return keys;
}

std::variant<Caller, ApiError> find_caller(const ApiKeys& keys, const HttpRequest& request) {
  if (!keys.asked_for()) return caller_of_header(request);
  const auto unauthorized = [](const char* message) {
    return ApiError{.failure = Failure::kUnauthorized, .message = message, .param = {}};
  };
  const std::optional<ApiKeyGrant> grant = keys.find(bearer_token(request));
  if (!grant) return unauthorized("a valid API key is needed");
  if (grant->expires && std::chrono::system_clock::now() >= *grant->expires) {
    return unauthorized("the API key has expired");
  }
  if (!grant->tenant.empty()) return Caller{.tenant = grant->tenant, .adapters = grant->adapters};
  return caller_of_header(request);
}

std::string hub_token_of(const ApiKeys& keys, const HttpRequest& request) {
  if (keys.asked_for()) return "";
  const std::string_view token = bearer_token(request);
  return token.starts_with(kHubToken) ? std::string(token) : "";
}

}  // namespace shoal
