#include "server/parse_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace shoal {

namespace {

std::optional<std::int32_t> token_id_of(const std::string& text) {
  std::int32_t id = -1;
  const char* end = text.data() + text.size();
  const auto [stopped, fault] = std::from_chars(text.data(), end, id);
  if (fault != std::errc() || stopped != end || id < 0) return std::nullopt;
  return id;
}

void read_logit_bias(FieldReader& reader, GenerateParameters& parameters) {
  const InputJson* biases = reader.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    reader.fail("logit_bias", fmt::format("expected an object of token ids and numbers, got {}", biases->type_name()));
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    const std::optional<std::int32_t> id = token_id_of(key);
    if (!id) {
      reader.fail("logit_bias", fmt::format("expected token ids as keys, found {}", InputJson(key).dump()));
      return;
    }
    if (!value.is_number()) {
      reader.fail("logit_bias", fmt::format("expected a number for token {}, got {}", *id, value.type_name()));
      return;
    }
    parameters.logit_bias.push_back({.id = *id, .value = static_cast<float>(value.get<double>())});
  }
  const auto by_id = [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; };
  std::sort(parameters.logit_bias.begin(), parameters.logit_bias.end(), by_id);
  const auto same_id = [](const LogitBias& a, const LogitBias& b) { return a.id == b.id; };
  const auto& list = parameters.logit_bias;
  const auto twice = std::adjacent_find(list.begin(), list.end(), same_id);
  if (twice != list.end()) reader.fail("logit_bias", fmt::format("token {} stands in it twice", twice->id));
}

}  // namespace

void read_token_rules(FieldReader& reader, GenerateParameters& parameters) {
  reader.read("min_p", parameters.min_p);
  reader.read("min_tokens", parameters.min_tokens);
  read_logit_bias(reader, parameters);
}

void read_native_scores(FieldReader& reader, GenerateParameters& parameters) {
  reader.read("decoder_input_details", parameters.decoder_input_details);
  reader.read("return_k_alternatives", parameters.return_k_alternatives);
  reader.read("top_n_tokens", parameters.top_n_tokens);
}

void read_completion_scores(FieldReader& reader, GenerateParameters& parameters) {
  reader.read("logprobs", parameters.logprobs);
  reader.read("prompt_logprobs", parameters.prompt_logprobs);
}

void read_chat_scores(FieldReader& reader, GenerateParameters& parameters) {
  std::optional<bool> wanted;
  std::optional<std::int32_t> num_top;
  reader.read("logprobs", wanted);
  reader.read("top_logprobs", num_top);
  parameters.logprobs_name = "top_logprobs";
  if (num_top && *num_top != 0 && !wanted.value_or(false)) {
    reader.fail("top_logprobs", "needs `logprobs`: true");
    return;
  }
  if (wanted.value_or(false)) parameters.logprobs = num_top.value_or(0);
  reader.read("prompt_logprobs", parameters.prompt_logprobs);
}

}  // namespace shoal
