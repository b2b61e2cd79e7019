// The fields of generate bodies that say what an answer must look like: `response_format`, and those of vLLM's users.
// Used by the generate endpoints.
#pragma once

#include <optional>
#include <string_view>

#include "server/parse_request.h"

namespace shoal {

// `text` is what `body` was parsed from: a schema's properties come in the order in which they were written.
std::optional<ApiError> read_native_grammar(const InputJson& body, std::string_view text,
                                            GenerateParameters& parameters);
std::optional<ApiError> read_openai_grammar(const InputJson& body, std::string_view text,
                                            GenerateParameters& parameters);

}  // namespace shoal
