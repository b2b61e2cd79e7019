// SantaCoder / StarCoder: learned positions, LayerNorm, multi-query attention, then a plain MLP, biases everywhere.
#include <fmt/core.h>

#include "core/result.h"
#include "layers/attention.h"
#include "layers/mlp.h"
#include "models/causal_lm.h"
#include "models/config_keys.h"

namespace shoal {
namespace {

// How the checkpoint stores its linear weights. Decided by architecture and names, never by shape.
enum class SantaCoderLayout : std::uint8_t {
  kLinear,       // gpt_bigcode: [out, in], fused c_attn
  kConv1dFused,  // GPT2LMHeadCustomModel: [in, out], fused c_attn
  kConv1dSplit,  // GPT2LMHeadCustomModel: [in, out], q_attn and kv_attn
};

struct SantaCoderConfig {
  explicit SantaCoderConfig(const ConfigReader& config)
      : hidden(config.required_size({"n_embd", "hidden_size"})),
        num_layers(config.required_size({"n_layer", "num_hidden_layers"})),
        heads(config.required_size({"n_head", "num_attention_heads"})),
        head_dim(hidden / heads),
        vocab(config.required_size("vocab_size")),
        intermediate(config.optional_size("n_inner", 4 * hidden)),
        num_positions(config.required_size({"n_positions", "max_position_embeddings"})),
        custom_gpt2(config.optional_string("model_type", "gpt_bigcode") == "gpt2"),
        multi_query(config.optional_bool("multi_query", true)),
        norm{.kind = NormKind::kLayer, .epsilon = static_cast<float>(config.required_float("layer_norm_epsilon"))},
        activation(read_activation(config, "activation_function")),
        tie(read_head_tie(config, true)) {
    if (hidden % heads != 0) config.refuse("n_head", "a divisor of n_embd");
    if (!config.optional_bool("scale_attn_weights", true)) config.refuse("scale_attn_weights", "true");
    if (custom_gpt2 && config.required_string("attention_head_type") != "multiquery") {
      config.refuse("attention_head_type", "multiquery");
    }
    const std::vector<std::string> architectures = config.optional_string_list("architectures");
    if (custom_gpt2 != (!architectures.empty() && architectures.front() == "GPT2LMHeadCustomModel")) {
      config.refuse("model_type", "gpt2 with GPT2LMHeadCustomModel, or gpt_bigcode with GPTBigCodeForCausalLM");
    }
    kv_heads = multi_query ? 1 : heads;
  }

  std::int64_t hidden, num_layers, heads, head_dim, vocab, intermediate, num_positions;
  bool custom_gpt2, multi_query;
  NormOptions norm;
  Activation activation;
  HeadTie tie;
  std::int64_t kv_heads = 1;
};

SantaCoderLayout find_layout(const LoadContext& load, const SantaCoderConfig& config) {
  if (!config.custom_gpt2) return SantaCoderLayout::kLinear;
  const bool split = load.weights.has("transformer.h.0.attn.q_attn.weight");
  return split ? SantaCoderLayout::kConv1dSplit : SantaCoderLayout::kConv1dFused;
}

// The rows Q | K | V; without multi-query the file interleaves them head by head.
std::vector<LinearPart> qkv_parts(const SantaCoderConfig& c, SantaCoderLayout layout, const std::string& name) {
  const std::int64_t kv_features = 2 * c.kv_heads * c.head_dim;
  if (layout == SantaCoderLayout::kConv1dSplit) {
    return {{.name = name + ".q_attn", .out_features = c.hidden},
            {.name = name + ".kv_attn", .out_features = kv_features}};
  }
  return {{.name = name + ".c_attn",
           .out_features = c.hidden + kv_features,
           .row_order = c.multi_query ? std::vector<RowRange>() : interleaved_qkv_rows(c.heads, c.head_dim)}};
}

struct SantaCoderBlock {
  SantaCoderBlock(LoadContext& load, const SantaCoderConfig& c, SantaCoderLayout layout, std::int64_t layer)
      : SantaCoderBlock(load, c, layout, layer, fmt::format("transformer.h.{}", layer),
                        layout == SantaCoderLayout::kLinear ? Orientation::kOutIn : Orientation::kInOut) {}

  SantaCoderBlock(LoadContext& load, const SantaCoderConfig& c, SantaCoderLayout layout, std::int64_t layer,
                  const std::string& name, Orientation orientation)
      : attention_norm(load, name + ".ln_1", c.hidden, c.norm),
        mlp_norm(load, name + ".ln_2", c.hidden, c.norm),
        attention(Linear(load, qkv_parts(c, layout, name + ".attn"), c.hidden,
                         {.bias = Bias::kPresent, .orientation = orientation}),
                  Linear(load, {{.name = name + ".attn.c_proj", .out_features = c.hidden}}, c.hidden,
                         {.split = LinearSplit::kRow, .bias = Bias::kPresent, .orientation = orientation}),
                  {.layer = layer, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}),
        mlp(Linear(load, {{.name = name + ".mlp.c_fc", .out_features = c.intermediate}}, c.hidden,
                   {.bias = Bias::kPresent, .orientation = orientation}),
            Linear(load, {{.name = name + ".mlp.c_proj", .out_features = c.hidden}}, c.intermediate,
                   {.split = LinearSplit::kRow, .bias = Bias::kPresent, .orientation = orientation}),
            MlpKind::kPlain, c.activation) {}

  Norm attention_norm, mlp_norm;
  Attention attention;
  Mlp mlp;
};

class SantaCoderModel final : public CausalLm {
 public:
  SantaCoderModel(const SantaCoderConfig& config, LoadContext& load)
      : embedding_(load, tied_embedding_name(load, "transformer.wte.weight", config.tie), config.vocab, config.hidden),
        position_embedding_(load, "transformer.wpe.weight", config.num_positions, config.hidden),
        final_norm_(load, "transformer.ln_f", config.hidden, config.norm),
        lm_head_(load, "lm_head", embedding_, config.tie) {
    const SantaCoderLayout layout = find_layout(load, config);
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.emplace_back(load, config, layout, i);
  }

  ForwardOutput forward(Context& ctx, const ForwardInput& in) const override {
    const Tensor hidden = embedding_.forward(ctx, in.input_ids);
    position_embedding_.forward_add(ctx, in.position_ids, hidden);
    for (const SantaCoderBlock& block : blocks_) {
      const Arena::Scope scope(ctx.arena);
      block.attention.forward_add(ctx, in, block.attention_norm.forward(ctx, hidden), hidden);
      block.mlp.forward_add(ctx, in, block.mlp_norm.forward(ctx, hidden), hidden);
    }
    return finish_forward(ctx, in, hidden, final_norm_, lm_head_);
  }

  Tensor lm_head(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const override {
    return lm_head_.forward(ctx, hidden, lora);
  }

 private:
  Embedding embedding_;
  Embedding position_embedding_;  // [n_positions, hidden]
  Norm final_norm_;
  LmHead lm_head_;
  std::vector<SantaCoderBlock> blocks_;
};

}  // namespace

ModelInfo read_santacoder_info(const ConfigReader& config) {
  const SantaCoderConfig c(config);
  return {.family = "santacoder",
          .num_layers = c.num_layers,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .hidden = c.hidden,
          .vocab = c.vocab,
          .max_positions = c.num_positions,
          .position_limit = PositionLimit::kTable};
}

std::unique_ptr<CausalLm> load_santacoder(const ConfigReader& config, LoadContext& load) {
  return std::make_unique<SantaCoderModel>(SantaCoderConfig(config), load);
}

}  // namespace shoal
