#include "server/errors.h"

#include <array>
#include <cstddef>

#include "core/check.h"
#include "server/json.h"

namespace shoal {

namespace {

constexpr const char* kInvalid = "invalid_request_error";
constexpr const char* kServer = "server_error";
constexpr const char* kInputPrefix = "Input validation error: ";
constexpr const char* kGenerationPrefix = "Request failed during generation: ";

// clang-format off
constexpr std::array<FailureRow, 26> kFailures = {{
  // failure                  native: status, error_type, error_code, prefix                                      /v1: status, type, code                            metric
  {Failure::kMalformed,       400, "bad_request",            "malformed_request",      "",                        400, kInvalid,           "",                       "bad_request"},
  {Failure::kTimedOut,        408, "request_timeout",        "request_timeout",        "",                        408, kInvalid,           "request_timeout",        "bad_request"},
  {Failure::kTooLarge,        413, "payload_too_large",      "payload_too_large",      "",                        413, kInvalid,           "payload_too_large",      "bad_request"},
  {Failure::kHeadersTooLarge, 431, "headers_too_large",      "headers_too_large",      "",                        431, kInvalid,           "headers_too_large",      "bad_request"},
  {Failure::kHttpVersion,     505, "http_version",           "http_version",           "",                        505, kInvalid,           "http_version",           "bad_request"},
  {Failure::kMediaType,       415, "unsupported_media_type", "unsupported_media_type", "",                        415, kInvalid,           "unsupported_media_type", "bad_request"},
  {Failure::kWrongType,       422, "validation",             "invalid_type",           kInputPrefix,              400, kInvalid,           "",                       "validation"},
  {Failure::kNoRoute,         404, "not_found",              "unknown_url",            "",                        404, kInvalid,           "unknown_url",            ""},
  {Failure::kWrongMethod,     405, "method_not_allowed",     "method_not_allowed",     "",                        405, kInvalid,           "method_not_allowed",     ""},
  {Failure::kUnauthorized,    401, "unauthorized",           "invalid_api_key",        "",                        401, kInvalid,           "invalid_api_key",        ""},
  {Failure::kModelNotFound,   404, "not_found",              "model_not_found",        "",                        404, kInvalid,           "model_not_found",        ""},
  {Failure::kUnhealthy,       503, "healthcheck",            "unhealthy",              "",                        503, kServer,            "unhealthy",              ""},
  {Failure::kCrowded,         503, "overloaded",             "too_many_connections",   "",                        503, kServer,            "too_many_connections",   "overloaded"},
  {Failure::kInternal,        500, "internal",               "internal",               "",                        500, kServer,            "internal",               "internal"},
  {Failure::kValidation,      422, "validation",             "invalid_value",          kInputPrefix,              400, kInvalid,           "",                       "validation"},
  {Failure::kAdapterNotFound, 424, "generation",             "adapter_not_found",      kGenerationPrefix,         404, kInvalid,           "model_not_found",        "download_adapter"},
  {Failure::kAdapterInvalid,  424, "generation",             "adapter_invalid",        kGenerationPrefix,         400, kInvalid,           "adapter_invalid",        "load_adapter"},
  {Failure::kOverloaded,      429, "overloaded",             "overloaded",             "Model is overloaded: ",   429, "rate_limit_error", "overloaded",             "overloaded"},
  {Failure::kGeneration,      424, "generation",             "generation_failed",      kGenerationPrefix,         500, kServer,            "generation",             "generation"},
  {Failure::kIncomplete,      500, "incomplete_generation",  "incomplete_generation",  "Incomplete generation: ", 500, kServer,            "incomplete_generation",  "incomplete"},
  {Failure::kTemplate,        422, "template_error",         "template_error",         "Template error: ",        400, kInvalid,           "template_error",         "template"},
  {Failure::kMissingVariable, 422, "missing_template_variable", "missing_template_variable", "Template error: ",  400, kInvalid,           "missing_template_variable", "template"},
  {Failure::kUnavailable,     503, "overloaded",             "unavailable",            "Server is unavailable: ", 503, kServer,            "unavailable",            "overloaded"},
  {Failure::kTimeout,         504, "timeout",                "timeout",                "Request timed out: ",     504, kServer,            "timeout",                "generation"},
  {Failure::kAdapterLoaded,   422, "validation",             "adapter_already_loaded", kInputPrefix,              400, kInvalid,           "adapter_already_loaded", ""},
  {Failure::kTooManyAdapters, 422, "validation",             "too_many_adapters",      kInputPrefix,              400, kInvalid,           "too_many_adapters",      ""},
}};
// clang-format on

constexpr bool in_order() {
  for (std::size_t i = 0; i < kFailures.size(); ++i) {
    if (static_cast<std::size_t>(kFailures[i].failure) != i) return false;
  }
  return true;
}
static_assert(in_order(), "a row stands at its Failure's number");

Failure failure_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kValidation:
      return Failure::kValidation;
    case ErrorCode::kAdapterNotFound:
      return Failure::kAdapterNotFound;
    case ErrorCode::kAdapterInvalid:
      return Failure::kAdapterInvalid;
    case ErrorCode::kOverloaded:
      return Failure::kOverloaded;
    case ErrorCode::kGeneration:
      return Failure::kGeneration;
    case ErrorCode::kIncomplete:
      return Failure::kIncomplete;
    case ErrorCode::kTemplate:
      return Failure::kTemplate;
    case ErrorCode::kUnavailable:
      return Failure::kUnavailable;
    case ErrorCode::kTimeout:
      return Failure::kTimeout;
  }
  return Failure::kInternal;
}

OutputJson error_json(const ApiError& error, ApiStyle style) {
  const FailureRow& row = failure_row(error.failure);
  OutputJson json;
  if (style == ApiStyle::kOpenAi) {
    OutputJson inner;
    inner["message"] = error.message;
    inner["type"] = row.openai_type;
    inner["param"] = error.param.empty() ? OutputJson() : OutputJson(error.param);
    inner["code"] = *row.openai_code == '\0' ? OutputJson() : OutputJson(row.openai_code);
    json["error"] = std::move(inner);
  } else {
    json["error"] = row.native_prefix + error.message;
  }
  // Beside OpenAI's object too: LoRAX's clients choose by them on every route.
  json["error_type"] = row.error_type;
  json["error_code"] = row.error_code;
  return json;
}

}  // namespace

const FailureRow& failure_row(Failure failure) {
  const auto index = static_cast<std::size_t>(failure);
  CHECK_LT(index, kFailures.size());
  return kFailures[index];
}

std::span<const FailureRow> all_failures() { return kFailures; }

ApiError to_api_error(const Error& error) {
  return {.failure = failure_of(error.code), .message = error.message, .param = {}};
}

int error_status(const ApiError& error, ApiStyle style) {
  const FailureRow& row = failure_row(error.failure);
  return style == ApiStyle::kOpenAi ? row.openai_status : row.native_status;
}

std::string error_body(const ApiError& error, ApiStyle style) { return to_text(error_json(error, style)); }

std::string error_event(const ApiError& error, ApiStyle style) { return to_event(error_json(error, style)); }

void send_error(const ResponseWriter& writer, const ApiError& error, ApiStyle style, HttpHeaders headers) {
  headers.insert(headers.begin(), {"content-type", "application/json"});
  const Failure failure = error.failure;
  if (failure == Failure::kOverloaded || failure == Failure::kUnavailable || failure == Failure::kCrowded) {
    headers.emplace_back("retry-after", "1");
  }
  writer.note("error", std::string(failure_row(failure).error_code));
  writer.send(error_status(error, style), headers, error_body(error, style));
}

ApiStyle style_of_path(std::string_view path) {
  return path.starts_with("/v1/") ? ApiStyle::kOpenAi : ApiStyle::kNative;
}

}  // namespace shoal
