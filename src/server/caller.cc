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

// Does not tell by its duration how many characters were right.
bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

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

std::variant<Caller, ApiError> find_caller(const ServerOptions& options, const HttpRequest& request) {
  if (options.api_key.empty() && options.tenant_api_keys.empty()) return caller_of_header(request);
  const std::string_view token = bearer_token(request);
  const TenantApiKey* owner = nullptr;
  for (const TenantApiKey& candidate : options.tenant_api_keys) {
    if (equal_secrets(token, candidate.key)) owner = &candidate;
  }
  if (owner != nullptr) return Caller{.tenant = fmt::format("key/{}", owner->tenant)};
  if (!options.api_key.empty() && equal_secrets(token, options.api_key)) return caller_of_header(request);
  return ApiError{.failure = Failure::kUnauthorized, .message = "a valid API key is needed", .param = {}};
}

std::string hub_token_of(const ServerOptions& options, const HttpRequest& request) {
  if (!options.api_key.empty() || !options.tenant_api_keys.empty()) return "";
  const std::string_view token = bearer_token(request);
  return token.starts_with(kHubToken) ? std::string(token) : "";
}

}  // namespace shoal
