// Solar and plain Llama: RMSNorm, grouped-query attention, gated MLP, and Solar's mixing of earlier residual streams.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/result.h"
#include "layers/attention.h"
#include "layers/mlp.h"
#include "models/causal_lm.h"
#include "models/config_keys.h"
#include "ops/elementwise.h"

namespace shoal {
namespace {

using LayerList = std::vector<std::int64_t>;

// BSKCN: before layer i the residual stream is saved (lists 1 and 2) and an earlier one is mixed in (3 and 4).
struct Bskcn {
  std::array<LayerList, 2> save;  // bskcn_1, bskcn_2
  std::array<LayerList, 2> mix;   // bskcn_3, bskcn_4: mixes what the list of the same index saved last
  float weight = 0.0F;            // bskcn_tv[1], of the saved stream; the first entry is for training
};

bool holds(const LayerList& layers, std::int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

Bskcn read_bskcn(const ConfigReader& config, std::int64_t num_layers) {
  Bskcn bskcn;
  bool any = false;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string save_key = fmt::format("bskcn_{}", i + 1);
    const std::string mix_key = fmt::format("bskcn_{}", i + 3);
    bskcn.save[i] = config.optional_int_list(save_key);
    bskcn.mix[i] = config.optional_int_list(mix_key);
    for (const std::string& key : {save_key, mix_key}) {
      for (const std::int64_t layer : config.optional_int_list(key)) {
        if (layer < 0 || layer >= num_layers) config.refuse(key, fmt::format("layers below {}", num_layers));
        any = true;
      }
    }
    for (const std::int64_t layer : bskcn.mix[i]) {
      const bool saved = std::any_of(bskcn.save[i].begin(), bskcn.save[i].end(), [&](auto j) { return j <= layer; });
      if (!saved) config.refuse(mix_key, fmt::format("no mix before the first layer of {}", save_key));
    }
  }
  const std::vector<double> weights = config.optional_float_list("bskcn_tv");
  if (any && weights.size() < 2) config.refuse("bskcn_tv", "two numbers, since the bskcn lists name layers");
  if (any) bskcn.weight = static_cast<float>(weights[1]);
  return bskcn;
}

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
        bskcn(read_bskcn(config, num_layers)) {
    check_head_counts(config, heads, kv_heads);
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
    std::array<Tensor, 2> saved;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      mix_saved_streams(ctx, static_cast<std::int64_t>(i), hidden, saved);
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
  // Saves come before mixes, both on the whole residual stream: hidden = saved * t + hidden * (1 - t).
  void mix_saved_streams(Context& ctx, std::int64_t layer, const Tensor& hidden, std::array<Tensor, 2>& saved) const {
    for (std::size_t i = 0; i < 2; ++i) {
      if (!holds(bskcn_.save[i], layer)) continue;
      if (!saved[i].defined()) saved[i] = ctx.arena.take(hidden.dtype(), {hidden.dim(0), hidden.dim(1)});
      ops::scale(ctx, hidden, 1.0F, saved[i]);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      if (holds(bskcn_.mix[i], layer)) ops::mix(ctx, saved[i], hidden, bskcn_.weight, hidden);
    }
  }

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
          .max_positions = c.max_positions};
}

std::unique_ptr<CausalLm> load_solar(const ConfigReader& config, LoadContext& load) {
  return std::make_unique<SolarModel>(SolarConfig(config), load);
}

}  // namespace shoal
