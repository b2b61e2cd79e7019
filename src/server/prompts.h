// Prompts as the /v1 routes take them: texts, token ids, or lists of either. Used by completions and embeddings.
#pragma once

#include <cstdint>
#include <vector>

#include "server/field_reader.h"
#include "server/parse_request.h"
#include "text/tokenizer.h"

namespace shoal {

// The required field `name`; empty after a fault.
std::vector<CompletionPrompt> read_prompts(FieldReader& reader, const char* name);

Parsed<std::vector<std::int64_t>> prompt_ids(const Tokenizer& tokenizer, const CompletionPrompt& prompt,
                                             SpecialTokens special);

}  // namespace shoal
