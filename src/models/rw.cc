// RefinedWeb / Falcon: LayerNorm, rotary or ALiBi, one fused query-key-value, attention and MLP side by side (7B, 40B,
// 11B, 180B) or one after the other (falcon-rw).
#include <fmt/core.h>

#include <optional>

#include "core/result.h"
#include "layers/parallel_block.h"
#include "models/causal_lm.h"
#include "models/rw_config.h"

namespace shoal {
namespace {

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
        block(load, load_attention(load, c, name + ".self_attention", layer, positions),
              load_mlp(load, c, name + ".mlp"),
              wiring == RwWiring::kParallelOneNorm ? ParallelInputs::kOne : ParallelInputs::kTwo) {
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
      : embedding_(load, tied_embedding_name(load, "transformer.word_embeddings.weight", config.tie), config.vocab,
                   config.hidden),
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
