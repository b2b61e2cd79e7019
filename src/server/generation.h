// Generation: carries one request from the scheduler to its connection and back, with headers and metrics. Used by
// the generate endpoints.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/context.h"
#include "server/validate.h"

namespace shoal {

// What an endpoint does with the events of an answer; called on the connection's loop. Tokens, then exactly one of
// the others - or nothing more at all when the client goes away.
struct GenerationSink {
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(const FinishEvent&)> on_finish;
  std::function<void(const ApiError&)> on_error;
};

// Checks the values, tokenizes by `tokenize`, checks lengths. `received` is when the request arrived.
Parsed<PreparedRequest> prepare_generation(ServerContext& context, const JsonCall& call,
                                           const GenerateParameters& parameters,
                                           const std::function<Parsed<std::vector<std::int64_t>>()>& tokenize);

// Submits; a refusal goes to the sink's on_error as well. The client's disconnect cancels the request.
void start_generation(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared,
                      GenerationSink sink);

// x-* headers of a stream, known before the first token.
HttpHeaders stream_headers(const ServerContext& context, const GenerationInfo& info);
// x-* headers of a whole answer.
HttpHeaders answer_headers(const ServerContext& context, const GenerationInfo& info, const FinishEvent& finish);

// Sends an error that comes before any event, and counts it.
void refuse(ServerContext& context, const ResponseWriter& writer, const ApiError& error, ApiStyle style);

// A request counts from here on, whatever becomes of it.
std::uint64_t random_u64();

}  // namespace shoal
