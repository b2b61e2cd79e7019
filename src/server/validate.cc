#include "server/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/http_format.h"

namespace shoal {

namespace {

// Below this a distribution is its argmax in float32 anyway, and dividing by it only makes infinities.
constexpr float kGreedyTemperature = 1e-5F;
constexpr std::size_t kMaxAdapterIdBytes = 512;
constexpr std::size_t kMaxTokenBytes = 1024;
constexpr std::int32_t kMaxChoices = 128;
constexpr std::size_t kMaxLogitBiases = 1024;

ApiError invalid(std::string param, std::string message) {
  return {.failure = Failure::kValidation, .message = std::move(message), .param = std::move(param)};
}

bool names_adapter(const GenerateParameters& parameters) {
  return parameters.adapter_id && !parameters.adapter_id->empty() && *parameters.adapter_id != kBaseModelId;
}

std::string source_of(const GenerateParameters& parameters, const ServerOptions& options) {
  return lower_case(parameters.adapter_source.value_or(options.default_adapter_source));
}

std::optional<ApiError> check_merged(const GenerateParameters& parameters) {
  constexpr const char* kIds = "merged_adapters.ids";
  if (parameters.adapter_id) {
    return invalid("merged_adapters", "`adapter_id` and `merged_adapters` must not both be set");
  }
  const auto merge = make_merge(*parameters.merged_adapters);
  if (const auto* error = std::get_if<ApiError>(&merge)) return *error;
  for (const std::string& id : parameters.merged_adapters->ids) {
    if (id.empty() || id == kBaseModelId) {
      return invalid(kIds, fmt::format("`{}` must not name the base model, given: '{}'", kIds, id));
    }
    if (auto error = check_adapter_id(id, kIds)) return error;
  }
  return std::nullopt;
}

std::optional<ApiError> check_adapter(const GenerateParameters& parameters) {
  if (parameters.merged_adapters) {
    if (auto error = check_merged(parameters)) return error;
  } else {
    if (!names_adapter(parameters)) return std::nullopt;
    if (auto error = check_adapter_id(*parameters.adapter_id, "adapter_id")) return error;
  }
  return check_api_token(parameters.api_token.value_or(""));
}

// The float is finite and `in_range`.
template <typename InRange>
bool out_of_range(const std::optional<float>& value, InRange in_range) {
  return value && !(std::isfinite(*value) && in_range(*value));
}

std::optional<ApiError> check_ranges(const GenerateParameters& p) {
  if (out_of_range(p.temperature, [](float v) { return v >= 0.0F; })) {
    return invalid("temperature", "`temperature` must be a finite number that is not negative");
  }
  if (out_of_range(p.repetition_penalty, [](float v) { return v > 0.0F; })) {
    return invalid("repetition_penalty", "`repetition_penalty` must be strictly positive");
  }
  const auto is_penalty = [](float v) { return v >= -2.0F && v <= 2.0F; };
  if (out_of_range(p.frequency_penalty, is_penalty)) {
    return invalid("frequency_penalty", "`frequency_penalty` must be from -2.0 to 2.0");
  }
  if (out_of_range(p.presence_penalty, is_penalty)) {
    return invalid("presence_penalty", "`presence_penalty` must be from -2.0 to 2.0");
  }
  if (out_of_range(p.top_p, [](float v) { return v > 0.0F && v <= 1.0F; })) {
    return invalid("top_p", "`top_p` must be > 0.0 and <= 1.0");
  }
  if (out_of_range(p.typical_p, [](float v) { return v > 0.0F && v < 1.0F; })) {
    return invalid("typical_p", "`typical_p` must be > 0.0 and < 1.0");
  }
  if (p.top_k && *p.top_k <= 0) return invalid("top_k", "`top_k` must be strictly positive");
  if (p.return_k_alternatives && (*p.return_k_alternatives <= 0 || *p.return_k_alternatives > kMostTopTokens)) {
    return invalid("return_k_alternatives", fmt::format("`return_k_alternatives` must be from 1 to {}, given: {}",
                                                        kMostTopTokens, *p.return_k_alternatives));
  }
  if (out_of_range(p.min_p, [](float v) { return v >= 0.0F && v <= 1.0F; })) {
    return invalid("min_p", fmt::format("`min_p` must be from 0.0 to 1.0, given: {}", *p.min_p));
  }
  return std::nullopt;
}

std::optional<ApiError> check_choices(const GenerateParameters& p) {
  const std::int32_t num_choices = p.num_choices.value_or(1);
  if (num_choices < 1 || num_choices > kMaxChoices) {
    return invalid("n", fmt::format("`n` must be from 1 to {}, given: {}", kMaxChoices, num_choices));
  }
  const std::int32_t num_candidates = p.num_candidates.value_or(num_choices);
  if (num_candidates < num_choices || num_candidates > kMaxChoices) {
    return invalid("best_of", fmt::format("`best_of` must be from `n` = {} to {}, given: {}", num_choices, kMaxChoices,
                                          num_candidates));
  }
  return std::nullopt;
}

std::optional<ApiError> check_best_of(const GenerateParameters& p, const ServerOptions& options) {
  const std::uint64_t best_of = p.best_of.value_or(1);
  if (best_of == 1) return std::nullopt;
  if (best_of == 0 || best_of > static_cast<std::uint64_t>(options.max_best_of)) {
    return invalid("best_of", fmt::format("`best_of` must be from 1 to {} (--max-best-of), given: {}",
                                          options.max_best_of, best_of));
  }
  return std::nullopt;
}

std::optional<ApiError> check_scores(const GenerateParameters& p) {
  const std::pair<const std::string, std::optional<std::int32_t>> counts[] = {
      {"top_n_tokens", p.top_n_tokens}, {p.logprobs_name, p.logprobs}, {"prompt_logprobs", p.prompt_logprobs}};
  for (const auto& [name, count] : counts) {
    if (count && (*count < 0 || *count > kMostTopTokens)) {
      return invalid(name, fmt::format("`{}` must be from 0 to {}, given: {}", name, kMostTopTokens, *count));
    }
  }
  if (p.logit_bias.size() > kMaxLogitBiases) {
    return invalid("logit_bias", fmt::format("`logit_bias` may hold at most {} tokens, given: {}", kMaxLogitBiases,
                                             p.logit_bias.size()));
  }
  for (const LogitBias& bias : p.logit_bias) {
    if (!(bias.value >= -100.0F && bias.value <= 100.0F)) {
      return invalid("logit_bias",
                     fmt::format("`logit_bias` must be from -100 to 100, given: {} for token {}", bias.value, bias.id));
    }
  }
  return std::nullopt;
}

std::optional<ApiError> check_counts(const GenerateParameters& p, const ServerOptions& options) {
  if (p.max_new_tokens && *p.max_new_tokens <= 0) {
    return invalid(p.max_new_tokens_name, fmt::format("`{}` must be strictly positive", p.max_new_tokens_name));
  }
  if (static_cast<std::int64_t>(p.stop.size()) > options.max_stop_sequences) {
    return invalid("stop", fmt::format("`stop` may hold at most {} sequences, given: {}", options.max_stop_sequences,
                                       p.stop.size()));
  }
  if (std::any_of(p.stop.begin(), p.stop.end(), [](const std::string& text) { return text.empty(); })) {
    return invalid("stop", "`stop` must not hold an empty sequence");
  }
  if (p.best_of.value_or(1) > 1 && p.seed) {
    return invalid("seed", "`seed` must not be set with `best_of` > 1: each of the answers has its own");
  }
  if (p.truncate && (*p.truncate == 0 || *p.truncate > static_cast<std::uint64_t>(options.max_input_length))) {
    return invalid("truncate",
                   fmt::format("`truncate` must be from 1 to {}, given: {}", options.max_input_length, *p.truncate));
  }
  return std::nullopt;
}

bool samples(const GenerateParameters& p) {
  const float temperature = p.temperature.value_or(1.0F);
  if (temperature < kGreedyTemperature) return false;
  const bool chooses = p.num_choices.value_or(1) > 1 || p.num_candidates.value_or(1) > 1;
  return chooses || p.do_sample || temperature != 1.0F || p.top_k || p.top_p.value_or(1.0F) < 1.0F ||
         p.typical_p.value_or(1.0F) < 1.0F || p.min_p.value_or(0.0F) > 0.0F;
}

SamplingParams make_sampling(const GenerateParameters& p, const ServerOptions& options, std::int64_t vocab_size,
                             std::uint64_t random_seed) {
  SamplingParams sampling;
  if (p.watermark) {
    sampling.watermark_gamma = options.watermark_gamma;
    sampling.watermark_delta = options.watermark_delta;
  }
  sampling.repetition_penalty = p.repetition_penalty.value_or(1.0F);
  sampling.frequency_penalty = p.frequency_penalty.value_or(0.0F);
  sampling.presence_penalty = p.presence_penalty.value_or(0.0F);
  sampling.greedy = !samples(p);
  if (sampling.greedy) return sampling;
  sampling.temperature = p.temperature.value_or(1.0F);
  sampling.top_p = p.top_p.value_or(1.0F);
  sampling.typical_p = p.typical_p.value_or(1.0F);
  sampling.min_p = p.min_p.value_or(0.0F);
  if (p.top_k) sampling.top_k = static_cast<std::int32_t>(std::min<std::int64_t>(*p.top_k, vocab_size));
  sampling.seed = p.seed.value_or(random_seed);
  return sampling;
}

// The native routes tell of the distribution that was sampled, as LoRAX does; the others of the model's own.
ScoreOptions make_scores(const GenerateParameters& p) {
  ScoreOptions scores;
  const std::int32_t alternatives = std::max(p.return_k_alternatives.value_or(0), p.top_n_tokens.value_or(0));
  if (alternatives > 0) {
    scores.answer = ScoreKind::kSampled;
    scores.answer_top = alternatives;
  }
  if (p.logprobs) {
    scores.answer = ScoreKind::kModel;
    scores.answer_top = *p.logprobs;
  }
  const bool echoed = p.logprobs && p.return_full_text.value_or(false);
  scores.prompt = echoed || p.prompt_logprobs || p.decoder_input_details;
  if (scores.prompt) scores.prompt_top = std::max(echoed ? *p.logprobs : 0, p.prompt_logprobs.value_or(0));
  return scores;
}

}  // namespace

std::optional<ApiError> check_adapter_id(const std::string& id, const char* field) {
  if (id.size() > kMaxAdapterIdBytes) {
    return invalid(field, fmt::format("`{}` must be at most {} bytes long", field, kMaxAdapterIdBytes));
  }
  if (std::any_of(id.begin(), id.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return invalid(field, fmt::format("`{}` must not hold control characters", field));
  }
  return std::nullopt;
}

std::optional<ApiError> check_api_token(const std::string& token) {
  if (token.size() > kMaxTokenBytes ||
      std::any_of(token.begin(), token.end(), [](char c) { return c <= 0x20 || c >= 0x7f; })) {
    return invalid("api_token", fmt::format("`api_token` must be at most {} visible ASCII characters", kMaxTokenBytes));
  }
  return std::nullopt;
}

std::optional<ApiError> check_adapter_source(const std::string& source, const ServerOptions& options,
                                             const char* field) {
  const auto& served = options.adapter_sources;
  if (std::find(served.begin(), served.end(), source) != served.end()) return std::nullopt;
  return ApiError{.failure = Failure::kAdapterInvalid,
                  .message = fmt::format("adapter source '{}' is not served here", source),
                  .param = field};
}

std::optional<ApiError> check_values(const GenerateParameters& parameters, const ServerOptions& options) {
  if (auto error = check_best_of(parameters, options)) return error;
  if (auto error = check_adapter(parameters)) return error;
  const bool chooses = parameters.best_of.value_or(1) > 1;
  if (chooses && !(samples(parameters) || parameters.temperature || parameters.top_p || parameters.typical_p)) {
    return invalid("best_of",
                   "`best_of` > 1 needs sampling: one of `do_sample`, `temperature`, `top_k`, `top_p`, `typical_p`");
  }
  if (auto error = check_choices(parameters)) return error;
  if (!parameters.unserved.empty()) {
    return invalid(parameters.unserved, fmt::format("`{}` is not served", parameters.unserved));
  }
  if (auto error = check_ranges(parameters)) return error;
  if (auto error = check_scores(parameters)) return error;
  if (auto error = check_counts(parameters, options)) return error;
  // Where an adapter would be fetched: a value at fault is told of before.
  if (!parameters.merged_adapters && !names_adapter(parameters)) return std::nullopt;
  return check_adapter_source(source_of(parameters, options), options, "adapter_source");
}

std::optional<AdapterKey> adapter_of(const GenerateParameters& parameters, const ServerOptions& options) {
  const std::string source = source_of(parameters, options);
  if (!parameters.merged_adapters) {
    if (!names_adapter(parameters)) return std::nullopt;
    return AdapterKey{.source = source, .id = *parameters.adapter_id};
  }
  AdapterMerge merge = std::get<AdapterMerge>(make_merge(*parameters.merged_adapters));
  AdapterKey key{.source = source, .id = fmt::format("{}", fmt::join(merge.ids, ","))};
  // One of full weight is itself.
  const bool is_itself = merge.ids.size() == 1 && merge.weights[0] == 1.0F && is_sum(merge);
  if (!is_itself) key.merge = std::move(merge);
  return key;
}

Parsed<PreparedRequest> prepare_request(const GenerateParameters& parameters, std::vector<std::int64_t> prompt_ids,
                                        const ServerOptions& options, std::int64_t vocab_size,
                                        std::uint64_t random_seed) {
  if (parameters.truncate && prompt_ids.size() > *parameters.truncate) {
    prompt_ids.erase(prompt_ids.begin(), prompt_ids.end() - static_cast<std::ptrdiff_t>(*parameters.truncate));
  }
  const auto num_prompt_tokens = static_cast<std::int64_t>(prompt_ids.size());
  if (num_prompt_tokens == 0) return invalid(parameters.prompt_name, "the prompt holds no token");
  for (const std::int64_t id : prompt_ids) {
    if (id < 0 || id >= vocab_size)
      return invalid(parameters.prompt_name, fmt::format("token id {} is not in the vocabulary", id));
  }
  const std::int64_t limit = options.max_total_tokens;
  std::int64_t max_new_tokens =
      parameters.max_new_tokens.value_or(std::max<std::int64_t>(limit - num_prompt_tokens, 1));
  if (parameters.embed) max_new_tokens = 0;
  if (!parameters.embed && num_prompt_tokens + max_new_tokens > limit) {
    return invalid(parameters.max_new_tokens_name,
                   fmt::format("prompt tokens + `{}` must be <= {}, given: {} prompt tokens and {} new ones",
                               parameters.max_new_tokens_name, limit, num_prompt_tokens, max_new_tokens));
  }
  if (num_prompt_tokens > options.max_input_length) {
    return invalid(parameters.prompt_name, fmt::format("the prompt must have at most {} tokens, given: {}",
                                                       options.max_input_length, num_prompt_tokens));
  }
  for (const std::int64_t id : parameters.stop_token_ids) {
    if (id >= vocab_size) return invalid("stop_token_ids", fmt::format("token id {} is not in the vocabulary", id));
  }
  for (const LogitBias& bias : parameters.logit_bias) {
    if (bias.id >= vocab_size) {
      return invalid("logit_bias", fmt::format("token id {} is not in the vocabulary of {}", bias.id, vocab_size));
    }
  }
  const std::int64_t min_tokens = parameters.min_tokens.value_or(0);
  if (min_tokens > max_new_tokens) {
    return invalid("min_tokens", fmt::format("`min_tokens` must be <= `{}`, given: {} and {}",
                                             parameters.max_new_tokens_name, min_tokens, max_new_tokens));
  }
  PreparedRequest prepared;
  Request& request = prepared.request;
  request.prompt_ids = std::move(prompt_ids);
  request.max_new_tokens = max_new_tokens;
  request.embed = parameters.embed;
  request.sampling = make_sampling(parameters, options, vocab_size, random_seed);
  request.stop = parameters.stop;
  request.stop_text = parameters.stop_text;
  request.stop_token_ids = parameters.stop_token_ids;
  std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
  request.ignore_eos = parameters.ignore_eos_token;
  request.skip_special_tokens = parameters.skip_special_tokens.value_or(true);
  request.min_new_tokens = min_tokens;
  request.logit_bias = parameters.logit_bias;
  request.scores = make_scores(parameters);
  if (request.scores.prompt) prepared.info.prompt_ids = request.prompt_ids;
  request.priority = parameters.priority.value_or(0);
  request.adapter = prepared.info.adapter = adapter_of(parameters, options);
  prepared.info.prompt_tokens = num_prompt_tokens;
  prepared.info.max_new_tokens = max_new_tokens;
  if (!request.sampling.greedy) prepared.info.seed = request.sampling.seed;
  return prepared;
}

std::int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace shoal
