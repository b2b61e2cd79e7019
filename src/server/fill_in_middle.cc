#include "server/fill_in_middle.h"

#include <array>

namespace shoal {

std::optional<MiddleMarkers> middle_markers(const Tokenizer& tokenizer) {
  for (const auto& [prefix, suffix, middle] : {std::array{"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
                                               std::array{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}}) {
    const auto prefix_id = tokenizer.token_id(prefix);
    const auto suffix_id = tokenizer.token_id(suffix);
    const auto middle_id = tokenizer.token_id(middle);
    if (prefix_id && suffix_id && middle_id) {
      return MiddleMarkers{.prefix = *prefix_id, .suffix = *suffix_id, .middle = *middle_id};
    }
  }
  return std::nullopt;
}

Parsed<std::vector<std::int64_t>> middle_prompt(const Tokenizer& tokenizer, std::span<const std::int64_t> prefix_ids,
                                                const std::string& suffix) {
  const std::optional<MiddleMarkers> markers = middle_markers(tokenizer);
  if (!markers) {
    return ApiError{.failure = Failure::kValidation,
                    .message =
                        "`suffix` needs a model that fills in the middle: its tokenizer must have <fim-prefix>, "
                        "<fim-suffix> and <fim-middle>, or the same with underscores, and has neither",
                    .param = "suffix"};
  }
  auto suffix_ids = tokenizer.encode(suffix, SpecialTokens::kNone);
  if (!suffix_ids.ok()) return to_api_error(suffix_ids.error());
  std::vector<std::int64_t> ids = {markers->prefix};
  ids.insert(ids.end(), prefix_ids.begin(), prefix_ids.end());
  ids.push_back(markers->suffix);
  ids.insert(ids.end(), suffix_ids.value().begin(), suffix_ids.value().end());
  ids.push_back(markers->middle);
  return ids;
}

}  // namespace shoal
