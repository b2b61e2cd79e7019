// Prompts that ask for the middle of a text, with the markers of models that were trained to fill it in. Used by
// openai_completions.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/errors.h"
#include "server/parse_request.h"
#include "text/tokenizer.h"

namespace shoal {

// Single tokens each.
struct MiddleMarkers {
  std::int64_t prefix = 0;
  std::int64_t suffix = 0;
  std::int64_t middle = 0;
};

// SantaCoder spells them with dashes, StarCoder with underscores; none: the model knows neither.
std::optional<MiddleMarkers> middle_markers(const Tokenizer& tokenizer);

// Prefix, suffix, then the middle that the answer is (Bavarian et al., 2022, "PSM").
Parsed<std::vector<std::int64_t>> middle_prompt(const Tokenizer& tokenizer, std::span<const std::int64_t> prefix_ids,
                                                const std::string& suffix);

}  // namespace shoal
