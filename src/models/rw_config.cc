#include "models/rw_config.h"

#include <optional>

namespace shoal {
namespace {

ConfigKeys kv_head_keys() { return {"num_kv_heads", "n_head_kv"}; }

// Early RefinedWeb configs do not say which decoder they are: the other keys do.
bool read_new_decoder(const ConfigReader& config, std::int64_t heads, bool alibi, bool parallel) {
  const std::optional<std::int64_t> kv_heads = config.find_size(kv_head_keys());
  if (const std::optional<bool> stated = config.find_bool("new_decoder_architecture")) return *stated;
  if (config.optional_string("model_type", "falcon") != "RefinedWeb" || !kv_heads) return false;
  if (!alibi && parallel) return true;
  if (*kv_heads != heads) {
    config.refuse(alibi ? "alibi" : "parallel_attn",
                  "new_decoder_architecture, since fewer key-value heads than heads mean the new decoder");
  }
  return false;
}

}  // namespace

RwConfig::RwConfig(const ConfigReader& config)
    : hidden(config.required_size({"hidden_size", "n_embed"})),
      num_layers(config.required_size({"num_hidden_layers", "n_layer"})),
      heads(config.required_size({"num_attention_heads", "n_head"})),
      head_dim(hidden / heads),
      vocab(config.required_size("vocab_size")),
      intermediate(config.optional_size("ffn_hidden_size", 4 * hidden)),
      max_positions(config.optional_size("max_position_embeddings", 2048)),
      alibi(config.optional_bool("alibi", false)),
      norm{.kind = NormKind::kLayer, .epsilon = static_cast<float>(config.required_float("layer_norm_epsilon"))},
      activation(read_activation(config, "activation", "gelu")),
      bias(config.optional_bool("bias", false) ? Bias::kPresent : Bias::kNone),
      tie(read_head_tie(config, true)),
      rotary(read_rotary(config, head_dim, RotaryStyle::kHalfSplit, max_positions)) {
  if (hidden % heads != 0) config.refuse("num_attention_heads", "a divisor of the hidden size");
  const bool parallel = config.optional_bool("parallel_attn", true);
  const bool new_decoder = read_new_decoder(config, heads, alibi, parallel);
  const bool multi_query = config.optional_bool("multi_query", true);
  if (new_decoder) {
    if (!parallel) config.refuse("parallel_attn", "true with new_decoder_architecture");
    const std::int64_t num_norms = config.optional_int("num_ln_in_parallel_attn", 2);
    if (num_norms != 1 && num_norms != 2) config.refuse("num_ln_in_parallel_attn", "1 or 2");
    wiring = num_norms == 2 ? RwWiring::kParallelTwoNorms : RwWiring::kParallelOneNorm;
    kv_heads = config.optional_size(kv_head_keys(), heads);
    qkv_rows = RwQkvRows::kGrouped;
  } else {
    wiring = parallel ? RwWiring::kParallelOneNorm : RwWiring::kSequential;
    kv_heads = multi_query ? 1 : heads;
    qkv_rows = multi_query ? RwQkvRows::kQueryKeyValue : RwQkvRows::kInterleaved;
  }
  check_head_counts(config, heads, kv_heads);
}

std::vector<RowRange> RwConfig::qkv_row_order() const {
  if (qkv_rows == RwQkvRows::kGrouped) return grouped_qkv_rows(heads, kv_heads, head_dim);
  if (qkv_rows == RwQkvRows::kInterleaved) return interleaved_qkv_rows(heads, head_dim);
  return {};
}

}  // namespace shoal
