// Cohere Command: one bias-free LayerNorm feeds attention and gated MLP side by side; rotary on neighbouring pairs,
// optional per-head norms of queries and keys, scaled logits.
#include <fmt/core.h>

#include <algorithm>

#include "layers/parallel_block.h"
#include "models/causal_lm.h"
#include "models/config_keys.h"

namespace shoal {
namespace {

// `model_max_length` is the served context of Command-R; tokenizers write 1e30 where it is unset.
std::int64_t read_max_positions(const ConfigReader& config) {
  const double model_max_length = config.optional_float("model_max_length", 1e30);
  if (model_max_length >= 1 && model_max_length < 1e9) return static_cast<std::int64_t>(model_max_length);
  return config.required_size("max_position_embeddings");
}

struct CohereConfig {
  explicit CohereConfig(const ConfigReader& config)
      : hidden(config.required_size("hidden_size")),
        intermediate(config.required_size("intermediate_size")),
        num_layers(config.required_size("num_hidden_layers")),
        heads(config.required_size("num_attention_heads")),
        kv_heads(config.optional_size("num_key_value_heads", heads)),
        head_dim(config.optional_size("head_dim", std::max<std::int64_t>(hidden / heads, 1))),
        vocab(config.required_size("vocab_size")),
        max_positions(read_max_positions(config)),
        norm{.kind = NormKind::kLayerBiasFree, .epsilon = static_cast<float>(config.required_float("layer_norm_eps"))},
        activation(read_activation(config, "hidden_act")),
        attention_bias(config.optional_bool("attention_bias", false) ? Bias::kPresent : Bias::kNone),
        use_qk_norm(config.optional_bool("use_qk_norm", false)),
        logit_scale(static_cast<float>(config.optional_float("logit_scale", 0.0625))),  // transformers' default
        rotary(read_rotary(config, head_dim, RotaryStyle::kNeighbours, max_positions)) {
    check_head_counts(config, heads, kv_heads);
  }

  std::int64_t hidden, intermediate, num_layers, heads, kv_heads, head_dim, vocab, max_positions;
  NormOptions norm;
  Activation activation;
  Bias attention_bias;
  bool use_qk_norm;
  float logit_scale;
  RotaryOptions rotary;
};

std::optional<QkNorm> load_qk_norm(LoadContext& load, const CohereConfig& c, const std::string& name) {
  if (!c.use_qk_norm) return std::nullopt;
  return QkNorm{.query_weight = Vector::load(load, name + ".q_norm.weight", {c.heads, c.head_dim}),
                .key_weight = Vector::load(load, name + ".k_norm.weight", {c.kv_heads, c.head_dim}),
                .epsilon = c.norm.epsilon};
}

Attention load_attention(LoadContext& load, const CohereConfig& c, const std::string& name, std::int64_t layer,
                         const Rotary& rotary) {
  return {Linear(load,
                 {{.name = name + ".q_proj", .out_features = c.heads * c.head_dim},
                  {.name = name + ".k_proj", .out_features = c.kv_heads * c.head_dim},
                  {.name = name + ".v_proj", .out_features = c.kv_heads * c.head_dim}},
                 c.hidden, {.bias = c.attention_bias}),
          Linear(load, {{.name = name + ".o_proj", .out_features = c.hidden}}, c.heads * c.head_dim,
                 {.split = LinearSplit::kRow, .bias = c.attention_bias}),
          {.layer = layer, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .rotary = &rotary},
          load_qk_norm(load, c, name)};
}

Mlp load_mlp(LoadContext& load, const CohereConfig& c, const std::string& name) {
  return {Linear(load,
                 {{.name = name + ".gate_proj", .out_features = c.intermediate},
                  {.name = name + ".up_proj", .out_features = c.intermediate}},
                 c.hidden, {}),
          Linear(load, {{.name = name + ".down_proj", .out_features = c.hidden}}, c.intermediate,
                 {.split = LinearSplit::kRow}),
          MlpKind::kGated, c.activation};
}

struct CohereBlock {
  CohereBlock(LoadContext& load, const CohereConfig& c, const std::string& name, std::int64_t layer,
              const Rotary& rotary)
      : input_norm(load, name + ".input_layernorm", c.hidden, c.norm),
        parallel(load, load_attention(load, c, name + ".self_attn", layer, rotary), load_mlp(load, c, name + ".mlp"),
                 ParallelInputs::kOne) {}

  Norm input_norm;
  ParallelBlock parallel;
};

class CohereModel final : public CausalLm {
 public:
  CohereModel(const CohereConfig& config, HeadTie tie, LoadContext& load)
      : embedding_(load, "model.embed_tokens.weight", config.vocab, config.hidden),
        rotary_(load, config.rotary),
        final_norm_(load, "model.norm", config.hidden, config.norm),
        lm_head_(load, "lm_head", embedding_, tie) {
    lm_head_.set_logit_scale(config.logit_scale);
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      blocks_.emplace_back(load, config, fmt::format("model.layers.{}", i), i, rotary_);
    }
  }

  ForwardOutput forward(Context& ctx, const ForwardInput& in) const override {
    const Tensor hidden = embedding_.forward(ctx, in.input_ids);
    for (const CohereBlock& block : blocks_) {
      const Arena::Scope scope(ctx.arena);
      const Tensor x = block.input_norm.forward(ctx, hidden);
      block.parallel.forward_add(ctx, in, x, x, hidden);
    }
    return finish_forward(ctx, in, hidden, final_norm_, lm_head_);
  }

  Tensor lm_head(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const override {
    return lm_head_.forward(ctx, hidden, lora);
  }

 private:
  Embedding embedding_;
  Rotary rotary_;
  Norm final_norm_;
  LmHead lm_head_;
  std::vector<CohereBlock> blocks_;
};

}  // namespace

ModelInfo read_cohere_info(const ConfigReader& config) {
  const CohereConfig c(config);
  return {.family = "cohere",
          .num_layers = c.num_layers,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .hidden = c.hidden,
          .vocab = c.vocab,
          .max_positions = c.max_positions};
}

std::unique_ptr<CausalLm> load_cohere(const ConfigReader& config, LoadContext& load) {
  // Tied unless the file brings its own head and the config does not insist.
  const HeadTie tie = read_head_tie(config, !load.weights.has("lm_head.weight"));
  return std::make_unique<CohereModel>(CohereConfig(config), tie, load);
}

}  // namespace shoal
