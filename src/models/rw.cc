// RefinedWeb / Falcon: LayerNorm, rotary or ALiBi, one fused query-key-value, attention and MLP side by side (7B, 40B,
// 11B, 180B) or one after the other (falcon-rw).
#include <fmt/core.h>

#include <optional>

#include "core/result.h"
#include "layers/parallel_block.h"
#include "models/causal_lm.h"
#include "models/config_keys.h"

namespace shoal {
namespace {

// How a block is wired, and with it which norms it has.
enum class RwWiring : std::uint8_t {
  kParallelOneNorm,   // input_layernorm feeds attention and MLP: 7B, 11B
  kParallelTwoNorms,  // ln_attn feeds attention, ln_mlp the MLP: 40B, 180B
  kSequential,        // input_layernorm, attention, post_attention_layernorm, MLP: falcon-rw
};

// Row order of the fused query_key_value.
enum class RwQkvRows : std::uint8_t { kQueryKeyValue, kGrouped, kInterleaved };

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

struct RwConfig {
  explicit RwConfig(const ConfigReader& config)
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

  std::vector<RowRange> qkv_row_order() const {
    if (qkv_rows == RwQkvRows::kGrouped) return grouped_qkv_rows(heads, kv_heads, head_dim);
    if (qkv_rows == RwQkvRows::kInterleaved) return interleaved_qkv_rows(heads, head_dim);
    return {};
  }

  std::int64_t hidden, num_layers, heads, head_dim, vocab, intermediate, max_positions;
  bool alibi;
  NormOptions norm;
  Activation activation;
  Bias bias;
  HeadTie tie;
  RotaryOptions rotary;
  std::int64_t kv_heads = 0;
  RwWiring wiring = RwWiring::kParallelOneNorm;
  RwQkvRows qkv_rows = RwQkvRows::kQueryKeyValue;
};

// What all blocks share: angles, or slopes, never both.
struct RwPositions {
  std::optional<Rotary> rotary;
  Vector alibi_slopes;  // float32 [heads]
};

RwPositions make_positions(const LoadContext& load, const RwConfig& c) {
  RwPositions positions;
  if (c.alibi) {
    positions.alibi_slopes = Vector::from_host(load.backend, alibi_slopes(c.heads), {c.heads});
  } else {
    positions.rotary.emplace(load, c.rotary);
  }
  return positions;
}

Attention load_attention(LoadContext& load, const RwConfig& c, const std::string& name, std::int64_t layer,
                         const RwPositions& positions) {
  return {Linear(load,
                 {{.name = name + ".query_key_value",
                   .out_features = (c.heads + 2 * c.kv_heads) * c.head_dim,
                   .row_order = c.qkv_row_order()}},
                 c.hidden, {.bias = c.bias}),
          Linear(load, {{.name = name + ".dense", .out_features = c.hidden}}, c.heads * c.head_dim,
                 {.split = LinearSplit::kRow, .bias = c.bias}),
          {.layer = layer,
           .heads = c.heads,
           .kv_heads = c.kv_heads,
           .head_dim = c.head_dim,
           .rotary = positions.rotary ? &*positions.rotary : nullptr,
           .alibi_slopes = c.alibi ? &positions.alibi_slopes.values : nullptr}};
}

Mlp load_mlp(LoadContext& load, const RwConfig& c, const std::string& name) {
  return {Linear(load, {{.name = name + ".dense_h_to_4h", .out_features = c.intermediate}}, c.hidden, {.bias = c.bias}),
          Linear(load, {{.name = name + ".dense_4h_to_h", .out_features = c.hidden}}, c.intermediate,
                 {.split = LinearSplit::kRow, .bias = c.bias}),
          MlpKind::kPlain, c.activation};
}

struct RwBlock {
  RwBlock(LoadContext& load, const RwConfig& c, const std::string& name, std::int64_t layer,
          const RwPositions& positions)
      : wiring(c.wiring),
        attention_norm(load, name + (two_norms() ? ".ln_attn" : ".input_layernorm"), c.hidden, c.norm),
        block(load_attention(load, c, name + ".self_attention", layer, positions), load_mlp(load, c, name + ".mlp"),
              load.communicator) {
    if (two_norms()) mlp_norm = Norm(load, name + ".ln_mlp", c.hidden, c.norm);
    if (wiring == RwWiring::kSequential) mlp_norm = Norm(load, name + ".post_attention_layernorm", c.hidden, c.norm);
  }

  bool two_norms() const { return wiring == RwWiring::kParallelTwoNorms; }

  void forward_add(Context& ctx, const ForwardInput& in, const Tensor& hidden) const {
    const Arena::Scope scope(ctx.arena);
    const Tensor x = attention_norm.forward(ctx, hidden);
    switch (wiring) {
      case RwWiring::kParallelOneNorm:
        block.forward_add(ctx, in, x, x, hidden);
        break;
      case RwWiring::kParallelTwoNorms:
        block.forward_add(ctx, in, x, mlp_norm.forward(ctx, hidden), hidden);
        break;
      case RwWiring::kSequential:
        block.attention().forward_add(ctx, in, x, hidden);
        block.mlp().forward_add(ctx, in, mlp_norm.forward(ctx, hidden), hidden);
        break;
    }
  }

  RwWiring wiring;
  Norm attention_norm, mlp_norm;
  ParallelBlock block;
};

class RwModel final : public CausalLm {
 public:
  RwModel(const RwConfig& config, LoadContext& load)
      : embedding_(load, embedding_name(load, config), config.vocab, config.hidden),
        positions_(make_positions(load, config)),
        final_norm_(load, "transformer.ln_f", config.hidden, config.norm),
        lm_head_(load, "lm_head", embedding_, config.tie) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      blocks_.emplace_back(load, config, fmt::format("transformer.h.{}", i), i, positions_);
    }
  }

  ForwardOutput forward(Context& ctx, const ForwardInput& in) const override {
    const Tensor hidden = embedding_.forward(ctx, in.input_ids);
    for (const RwBlock& block : blocks_) block.forward_add(ctx, in, hidden);
    return finish_forward(ctx, in, hidden, final_norm_, lm_head_);
  }

  Tensor lm_head(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const override {
    return lm_head_.forward(ctx, hidden, lora);
  }

 private:
  // Savers drop either half of a tied pair.
  static std::string embedding_name(const LoadContext& load, const RwConfig& config) {
    constexpr std::string_view own = "transformer.word_embeddings.weight";
    if (config.tie == HeadTie::kOwnWeight) return std::string(own);
    return load.weights.first_of({own, "lm_head.weight"});
  }

  Embedding embedding_;
  RwPositions positions_;
  Norm final_norm_;
  LmHead lm_head_;
  std::vector<RwBlock> blocks_;
};

}  // namespace

ModelInfo read_rw_info(const ConfigReader& config) {
  const RwConfig c(config);
  return {.family = "rw",
          .num_layers = c.num_layers,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .hidden = c.hidden,
          .vocab = c.vocab,
          .max_positions = c.max_positions};
}

std::unique_ptr<CausalLm> load_rw(const ConfigReader& config, LoadContext& load) {
  return std::make_unique<RwModel>(RwConfig(config), load);
}

}  // namespace shoal
