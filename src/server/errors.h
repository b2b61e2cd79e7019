// The one table of failures: HTTP status, error types and codes of both protocols. Used by every endpoint file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"
#include "server/http_server.h"

namespace shoal {

enum class Failure : std::uint8_t {
  // Before a handler sees a request.
  kMalformed,        // no HTTP, or no JSON
  kTimedOut,         // the request did not arrive in time
  kTooLarge,         // body limit
  kHeadersTooLarge,  // header limit
  kHttpVersion,      // neither 1.0 nor 1.1
  kMediaType,        // not application/json
  kWrongType,        // JSON of the wrong shape: a missing field, a string for a number
  kNoRoute,          // unknown path
  kWrongMethod,      // known path, other method
  kUnauthorized,     // no or a wrong API key
  kModelNotFound,    // GET /v1/models/{id}
  kUnhealthy,        // health checks
  kCrowded,          // connection limit
  kInternal,         // a handler threw
  // One for each ErrorCode.
  kValidation,
  kAdapterNotFound,
  kAdapterInvalid,
  kOverloaded,
  kGeneration,
  kIncomplete,
  kTemplate,
  kMissingVariable,  // of a template
  kUnavailable,
  kTimeout,
  // Of names for adapters, /v1/load_lora_adapter.
  kAdapterLoaded,    // the name is taken
  kTooManyAdapters,  // limit of names
};

// Native routes answer LoRAX's ErrorResponse, /v1 routes OpenAI's error object.
enum class ApiStyle : std::uint8_t { kNative, kOpenAi };

struct FailureRow {
  Failure failure;
  int native_status;
  const char* error_type;  // native: clients choose their exception by it, so LoRAX's set is kept
  const char* error_code;  // native, one a row: tells apart what shares an error_type
  const char* native_prefix;
  int openai_status;
  const char* openai_type;
  const char* openai_code;  // "" is written null
  const char* metric;       // label `err` of lorax_request_failure, "" is not counted
};

const FailureRow& failure_row(Failure failure);
std::span<const FailureRow> all_failures();  // docs/errors.md shows them

struct ApiError {
  Failure failure = Failure::kInternal;
  std::string message;
  std::string param;  // the field at fault, "" when it is none
};

ApiError to_api_error(const Error& error);

int error_status(const ApiError& error, ApiStyle style);
std::string error_body(const ApiError& error, ApiStyle style);   // JSON text
std::string error_event(const ApiError& error, ApiStyle style);  // the same as a server-sent event

void send_error(const ResponseWriter& writer, const ApiError& error, ApiStyle style, HttpHeaders headers = {});

// /v1/... speaks OpenAI's protocol.
ApiStyle style_of_path(std::string_view path);

}  // namespace shoal
