#include "models/config_keys.h"

#include <fmt/core.h>

#include "core/result.h"
#include "layers/mlp.h"

namespace shoal {
namespace {

void read_yarn(const ConfigReader& scaling, RotaryOptions& options) {
  options.scaling = RopeScaling::kYarn;
  options.original_max_positions =
      scaling.optional_float("original_max_position_embeddings", static_cast<double>(options.max_positions));
  options.factor = scaling.required_float("factor");
  options.beta_fast = scaling.optional_float("beta_fast", 32.0);
  options.beta_slow = scaling.optional_float("beta_slow", 1.0);
  options.attention_factor = scaling.find_float("attention_factor");
  options.mscale = scaling.find_float("mscale");
  options.mscale_all_dim = scaling.find_float("mscale_all_dim");
  options.truncate = scaling.optional_bool("truncate", true);
}

void read_llama3(const ConfigReader& scaling, RotaryOptions& options) {
  options.scaling = RopeScaling::kLlama3;
  options.factor = scaling.required_float("factor");
  options.original_max_positions = scaling.required_float("original_max_position_embeddings");
  options.low_freq_factor = scaling.required_float("low_freq_factor");
  options.high_freq_factor = scaling.required_float("high_freq_factor");
  if (options.low_freq_factor == options.high_freq_factor) {
    scaling.refuse("high_freq_factor", "another value than low_freq_factor");
  }
}

void read_scaling(const ConfigReader& scaling, RotaryOptions& options) {
  const std::string kind = scaling.optional_string({"rope_type", "type"}, "default");
  if (kind == "linear" || kind == "dynamic") {
    options.scaling = kind == "linear" ? RopeScaling::kLinear : RopeScaling::kDynamic;
    options.factor = scaling.required_float("factor");
  } else if (kind == "yarn") {
    read_yarn(scaling, options);
  } else if (kind == "llama3") {
    read_llama3(scaling, options);
  } else if (kind != "default") {
    scaling.refuse(scaling.has("rope_type") ? "rope_type" : "type", "default, linear, dynamic, yarn or llama3");
  }
  if (options.factor <= 0) scaling.refuse("factor", "a number above 0");
}

}  // namespace

RotaryOptions read_rotary(const ConfigReader& config, std::int64_t rotary_dim, RotaryStyle style,
                          std::int64_t max_positions) {
  RotaryOptions options{.rotary_dim = rotary_dim, .style = style, .max_positions = max_positions};
  const std::optional<ConfigReader> parameters = config.optional_object("rope_parameters");
  const double nested_theta = parameters ? parameters->optional_float("rope_theta", 10000.0) : 10000.0;
  options.theta = config.optional_float("rope_theta", nested_theta);
  if (options.theta <= 0) config.refuse("rope_theta", "a number above 0");
  const std::optional<ConfigReader> scaling = config.optional_object("rope_scaling");
  if (scaling) {
    read_scaling(*scaling, options);
  } else if (parameters) {
    read_scaling(*parameters, options);
  }
  return options;
}

Activation read_activation(const ConfigReader& config, const char* key, const char* absent) {
  const std::string name = absent != nullptr ? config.optional_string(key, absent) : config.required_string(key);
  const std::optional<Activation> activation = activation_from_name(name);
  if (!activation) config.refuse(key, "silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh or relu");
  return *activation;
}

HeadTie read_head_tie(const ConfigReader& config, bool absent) {
  return config.optional_bool("tie_word_embeddings", absent) ? HeadTie::kTiedToEmbedding : HeadTie::kOwnWeight;
}

std::string tied_embedding_name(const LoadContext& load, std::string_view own_name, HeadTie tie) {
  if (tie == HeadTie::kOwnWeight) return std::string(own_name);
  return load.weights.first_of({own_name, "lm_head.weight"});
}

void check_head_counts(const ConfigReader& config, std::int64_t heads, std::int64_t kv_heads) {
  if (heads % kv_heads == 0) return;
  throw StartError(fmt::format("{}: {} attention heads and {} key-value heads, expected a multiple", config.file(),
                               heads, kv_heads));
}

}  // namespace shoal
