#include "server/prompts.h"

#include <fmt/format.h>

namespace shoal {

std::vector<CompletionPrompt> read_prompts(FieldReader& reader, const char* name) {
  const InputJson* field = reader.find(name);
  if (field == nullptr) {
    reader.fail(name, "missing field");
    return {};
  }
  const bool is_list =
      field->is_array() && !field->empty() && (field->front().is_array() || field->front().is_string());
  const InputJson one = is_list ? InputJson() : InputJson::array({*field});
  std::vector<CompletionPrompt> prompts;
  for (const InputJson& each : is_list ? *field : one) {
    if (each.is_string()) {
      prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      prompts.emplace_back(reader.token_ids(name, each));
    } else {
      reader.fail(name, fmt::format("expected a string, token ids or a list of either, got {}", each.type_name()));
      return {};
    }
  }
  return prompts;
}

Parsed<std::vector<std::int64_t>> prompt_ids(const Tokenizer& tokenizer, const CompletionPrompt& prompt,
                                             SpecialTokens special) {
  if (const auto* ids = std::get_if<std::vector<std::int64_t>>(&prompt)) return *ids;
  auto ids = tokenizer.encode(std::get<std::string>(prompt), special);
  if (!ids.ok()) return to_api_error(ids.error());
  return std::move(ids.value());
}

}  // namespace shoal
