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

// A prompt's tokens, by the texts of the request's adapter.
using Tokenize = std::function<Parsed<std::vector<std::int64_t>>(const Texts& texts)>;

// Checks the values, looks the adapter up, tokenizes by `tokenize`, checks lengths. `received` is when the request
// arrived.
Parsed<PreparedRequest> prepare_generation(ServerContext& context, const JsonCall& call,
                                           const GenerateParameters& parameters, const Tokenize& tokenize);

// The same for several prompts of one call, of which each but the first may be the one at fault.
Parsed<std::vector<PreparedRequest>> prepare_prompts(ServerContext& context, const JsonCall& call,
                                                     const GenerateParameters& parameters,
                                                     const std::vector<Tokenize>& prompts);

// Calls `go_on` on the connection's loop with the grammar that the request asks for: at once, and with null, where it
// asks for none. Others may take their time: they are compiled elsewhere, and the loop goes on.
void with_grammar(ServerContext& context, const ResponseWriter& writer, const PreparedRequest& prepared,
                  std::function<void(Parsed<std::shared_ptr<const Grammar>>)> go_on);

// Submits; a refusal goes to the sink's on_error as well. The client's disconnect cancels the request.
void start_generation(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared,
                      GenerationSink sink);

// The same for one of several parts of an answer, whose grammar is compiled: neither are metrics of the request
// counted, nor does a disconnect cancel it. What is returned does, without a call of the sink; null where the scheduler
// refused it.
std::function<void()> start_generation_part(ServerContext& context, const ResponseWriter& writer,
                                            PreparedRequest prepared, GenerationSink sink);

void count_success(ServerContext& context, const GenerationInfo& info, const FinishEvent& finish);

// x-* headers of a stream, known before the first token.
HttpHeaders stream_headers(const ServerContext& context, const GenerationInfo& info);
// x-* headers of a whole answer.
HttpHeaders answer_headers(const ServerContext& context, const GenerationInfo& info, const FinishEvent& finish);

// Sends an error that comes before any event, and counts it.
void refuse(ServerContext& context, const ResponseWriter& writer, const ApiError& error, ApiStyle style);

// A request counts from here on, whatever becomes of it.
std::uint64_t random_u64();

}  // namespace shoal
