// Parsers of the fields that shape single tokens and ask for their scores, for all generate bodies. Used by
// parse_request.cc; values are checked in validate.cc.
#pragma once

#include "server/field_reader.h"
#include "server/parse_request.h"

namespace shoal {

// min_p, min_tokens, logit_bias: spelled alike on all routes.
void read_token_rules(FieldReader& reader, GenerateParameters& parameters);
// decoder_input_details, return_k_alternatives, top_n_tokens.
void read_native_scores(FieldReader& reader, GenerateParameters& parameters);
// prompt_logprobs on both; `logprobs` is a number on /v1/completions, and a flag beside top_logprobs on chat.
void read_completion_scores(FieldReader& reader, GenerateParameters& parameters);
void read_chat_scores(FieldReader& reader, GenerateParameters& parameters);

}  // namespace shoal
