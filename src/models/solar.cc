// Solar and plain Llama: RMSNorm, grouped-query attention, gated MLP, and Solar's mixing of earlier residual streams.
#include <fmt/core.h>

#include <algorithm>

#include "core/result.h"
#include "layers/attention.h"
#include "layers/mlp.h"
#include "models/bskcn.h"
#include "models/causal_lm.h"
#include "models/config_keys.h"

namespace shoal {
namespace {

struct SolarConfig {
  explicit SolarConfig(const ConfigReader& config)
      : hidden(config.required_size("hidden_size")),
        intermediate(config.required_size("intermediate_size")),
        num_layers(config.required_size("num_hidden_layers")),
        heads(config.required_size("num_attention_heads")),
        kv_heads(config.optional_size("num_key_value_heads", heads)),
        head_dim(config.optional_size("head_dim", std::max<std::int64_t>(hidden / heads, 1))),
        vocab(config.required_size("vocab_size")),
        max_positions(config.required_size("max_position_embeddings")),
        sliding_window(config.optional_int("sliding_window", 0)),
        norm{.kind = NormKind::kRms, .epsilon = static_cast<float>(config.required_float("rms_norm_eps"))},
        activation(read_activation(config, "hidden_act")),
        attention_bias(config.optional_bool("attention_bias", false) ? Bias::kPresent : Bias::kNone),
        mlp_bias(config.optional_bool("mlp_bias", false) ? Bias::kPresent : Bias::kNone),
        tie(read_head_tie(config, false)),
        rotary(read_rotary(config, head_dim, RotaryStyle::kHalfSplit, max_positions)),
        bskcn(config, num_layers) {
    check_head_counts(config, heads, kv_heads);
    if (sliding_window < 0) config.refuse("sliding_window", "a number of tokens, or 0 for none");
  }

  std::int64_t hidden, intermediate, num_layers, heads, kv_heads, head_dim, vocab, max_positions, sliding_window;
  NormOptions norm;
  Activation activation;
  Bias attention_bias, mlp_bias;
  HeadTie tie;
  RotaryOptions rotary;
  Bskcn bskcn;
};

struct SolarBlock {
  SolarBlock(LoadContext& load, const SolarConfig& config, std::int64_t layer, const Rotary& rotary)
      : SolarBlock(load, config, fmt::format("model.layers.{}", layer), layer, rotary) {}

  SolarBlock(LoadContext& load, const SolarConfig& c, const std::string& name, std::int64_t layer, const Rotary& rotary)
      : input_norm(load, name + ".input_layernorm", c.hidden, c.norm),
        post_attention_norm(load, name + ".post_attention_layernorm", c.hidden, c.norm),
        attention(Linear(load,
                         {{.name = name + ".self_attn.q_proj", .out_features = c.heads * c.head_dim},
                          {.name = name + ".self_attn.k_proj", .out_features = c.kv_heads * c.head_dim},
                          {.name = name + ".self_attn.v_proj", .out_features = c.kv_heads * c.head_dim}},
                         c.hidden, {.bias = c.attention_bias}),
                  Linear(load, {{.name = name + ".self_attn.o_proj", .out_features = c.hidden}}, c.heads * c.head_dim,
                         {.split = LinearSplit::kRow, .bias = c.attention_bias}),
                  {.layer = layer,
                   .heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .rotary = &rotary,
                   .sliding_window = c.sliding_window}),
        mlp(Linear(load,
                   {{.name = name + ".mlp.gate_proj", .out_features = c.intermediate},
                    {.name = name + ".mlp.up_proj", .out_features = c.intermediate}},
                   c.hidden, {.bias = c.mlp_bias}),
            Linear(load, {{.name = name + ".mlp.down_proj", .out_features = c.hidden}}, c.intermediate,
                   {.split = LinearSplit::kRow, .bias = c.mlp_bias}),
            MlpKind::kGated, c.activation) {}

  Norm input_norm, post_attention_norm;
  Attention attention;
  Mlp mlp;
};

class SolarModel final : public CausalLm {
 public:
  SolarModel(const SolarConfig& config, LoadContext& load)
      : bskcn_(config.bskcn),
        embedding_(load, "model.embed_tokens.weight", config.vocab, config.hidden),
        rotary_(load, config.rotary),
        final_norm_(load, "model.norm", config.hidden, config.norm),
        lm_head_(load, "lm_head", embedding_, config.tie) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.emplace_back(load, config, i, rotary_);
  }

  ForwardOutput forward(Context& ctx, const ForwardInput& in) const override {
    const Tensor hidden = embedding_.forward(ctx, in.input_ids);
    Bskcn::Saved saved;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      bskcn_.apply(ctx, static_cast<std::int64_t>(i), hidden, saved);
      const Arena::Scope scope(ctx.arena);
      const SolarBlock& block = blocks_[i];
      block.attention.forward_add(ctx, in, block.input_norm.forward(ctx, hidden), hidden);
      block.mlp.forward_add(ctx, in, block.post_attention_norm.forward(ctx, hidden), hidden);
    }
    return finish_forward(ctx, in, hidden, final_norm_, lm_head_);
  }

  Tensor lm_head(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const override {
    return lm_head_.forward(ctx, hidden, lora);
  }

 private:
  Bskcn bskcn_;
  Embedding embedding_;
  Rotary rotary_;
  Norm final_norm_;
  LmHead lm_head_;
  std::vector<SolarBlock> blocks_;
};

}  // namespace

ModelInfo read_solar_info(const ConfigReader& config) {
  const SolarConfig c(config);
  return {.family = "solar",
          .num_layers = c.num_layers,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .hidden = c.hidden,
          .vocab = c.vocab,
          .max_positions = c.max_positions,
          .sliding_window = c.sliding_window};
}

std::unique_ptr<CausalLm> load_solar(const ConfigReader& config, LoadContext& load) {
  return std::make_unique<SolarModel>(SolarConfig(config), load);
}

}  // namespace shoal
