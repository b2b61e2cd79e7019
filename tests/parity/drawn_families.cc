// The families of drawn_model.h: configs in every spelling and layout that is served, weights as Hugging Face names
// them. Deviations are chosen so that attention is far from uniform and logits are of order one.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "parity/drawn_model.h"

namespace shoal {
namespace {

constexpr std::int64_t kWidestFusedHeads = 320;      // heads x head_dim where it is the hidden size too
constexpr std::int64_t kLargestProjection = 60'000;  // elements of a query projection where hidden is free

enum class Biases : std::uint8_t { kNone, kPresent };

class Builder {
 public:
  Builder(DrawnModel& model, Draw& draw) : model_(model), draw_(draw) {}

  void embedding(const std::string& name, std::int64_t rows) {
    model_.tensors[name] = draw_tensor(draw_, {rows, model_.hidden}, 0.5F);
  }
  void norm(const std::string& name, Biases biases = Biases::kNone) {
    model_.tensors[name + ".weight"] = draw_tensor(draw_, {model_.hidden}, 0.2F, 1.0F);
    if (biases == Biases::kPresent) model_.tensors[name + ".bias"] = draw_tensor(draw_, {model_.hidden}, 0.1F);
  }
  void linear(const DrawnLinear& linear, Biases biases = Biases::kNone) {
    std::vector<std::int64_t> shape = {linear.out_features, linear.in_features};
    if (linear.orientation == Orientation::kInOut) std::swap(shape[0], shape[1]);
    const float deviation = 1.6F / std::sqrt(static_cast<float>(linear.in_features));
    model_.tensors[linear.path + ".weight"] = draw_tensor(draw_, std::move(shape), deviation);
    if (biases == Biases::kPresent) {
      model_.tensors[linear.path + ".bias"] = draw_tensor(draw_, {linear.out_features}, 0.1F);
    }
    model_.linears.push_back(linear);
  }
  // Says so in the config unless `default_tie` already does. `either_half`: a tied pair may be stored under the head's
  // name alone.
  void head(bool default_tie, bool either_half) {
    const bool tied = draw_.chance(50);
    if (tied != default_tie || draw_.chance(50)) model_.config["tie_word_embeddings"] = tied;
    const DrawnLinear head{.path = "lm_head", .in_features = model_.hidden, .out_features = model_.vocab};
    if (!tied) {
      linear(head);
      return;
    }
    model_.linears.push_back(head);
    model_.note += ", tied";
    if (either_half && draw_.chance(30)) {
      auto stored = model_.tensors.extract(model_.embedding);
      stored.key() = "lm_head.weight";
      model_.tensors.insert(std::move(stored));
    }
  }

 private:
  DrawnModel& model_;
  Draw& draw_;
};

DrawnModel start_model(DrawnFamily family, Draw& draw) {
  DrawnModel model;
  model.family = family;
  model.vocab = draw.between(97, 300);
  model.longest = kLongestDrawnSequence;
  model.file_dtype = draw.one_of({DType::kFloat32, DType::kBFloat16});
  model.config = {{"vocab_size", model.vocab}, {"torch_dtype", dtype_name(model.file_dtype)}};
  return model;
}

// Heads apart from the hidden size: Solar, Cohere.
void draw_free_heads(DrawnModel& model, Draw& draw) {
  const std::int64_t group = draw.between(1, 16);
  model.head_dim = draw.one_of<std::int64_t>({16, 24, 32, 64, 128});
  model.kv_heads = draw.between(1, std::clamp<std::int64_t>(512 / (group * model.head_dim), 1, 5));
  model.heads = group * model.kv_heads;
  const std::int64_t query_width = model.heads * model.head_dim;
  model.hidden = draw.between(17, std::clamp<std::int64_t>(kLargestProjection / query_width, 24, 200));
  model.config["num_attention_heads"] = model.heads;
  model.config["num_key_value_heads"] = model.kv_heads;
  model.config["head_dim"] = model.head_dim;
  model.config["hidden_size"] = model.hidden;
}

// hidden = heads x head_dim: Falcon, SantaCoder.
void draw_fused_heads(DrawnModel& model, Draw& draw, std::int64_t group, std::int64_t kv_heads) {
  model.kv_heads = kv_heads;
  model.heads = group * kv_heads;
  const std::int64_t widest = std::max<std::int64_t>(kWidestFusedHeads / model.heads, 16);
  do {
    model.head_dim = draw.one_of<std::int64_t>({16, 20, 24, 32, 64, 128});
  } while (model.head_dim > widest);
  model.hidden = model.heads * model.head_dim;
}

nlohmann::json draw_scaling(const std::string& kind, Draw& draw) {
  nlohmann::json scaling;
  scaling[draw.one_of<const char*>({"rope_type", "type"})] = kind;
  if (kind == "default") return scaling;
  scaling["factor"] = draw.one_of({1.5, 2.0, 8.0});
  if (kind == "yarn") {
    scaling["original_max_position_embeddings"] = draw.one_of({16, 64});
    if (draw.chance(30)) scaling["attention_factor"] = 1.25;
    if (draw.chance(30)) scaling["beta_fast"] = 16;
    if (draw.chance(30)) scaling["truncate"] = false;
  } else if (kind == "llama3") {
    scaling["original_max_position_embeddings"] = draw.one_of({32, 256});
    scaling["low_freq_factor"] = 1.0;
    scaling["high_freq_factor"] = 4.0;
  }
  return scaling;
}

// Base and scaling in the spelling of transformers 4 or 5, or left out.
void draw_rotary(DrawnModel& model, Draw& draw) {
  const double theta = draw.one_of({10000.0, 500.0, 500042.0});
  const std::string kind = draw.one_of<const char*>({"default", "default", "linear", "dynamic", "yarn", "llama3"});
  if (kind != "default") model.note += ", rope " + kind;
  if (draw.chance(50)) {
    model.config["rope_parameters"] = draw_scaling(kind, draw);
    model.config["rope_parameters"]["rope_theta"] = theta;
    return;
  }
  if (theta != 10000.0) model.config["rope_theta"] = theta;
  if (kind != "default") model.config["rope_scaling"] = draw_scaling(kind, draw);
}

// Residual streams saved and mixed in again; each mix comes at or after the first save of its list.
void draw_bskcn(DrawnModel& model, Draw& draw) {
  model.layers = draw.between(3, 6);
  model.config["bskcn_tv"] = {0.9, draw.one_of({0.8, 0.25})};
  const auto is_mixed = [&](std::int64_t first_save, std::int64_t layer) {
    return layer >= first_save && draw.chance(40);
  };
  for (const int list : {1, 2}) {
    const std::int64_t first_save = draw.between(0, model.layers - 2);
    std::vector<std::int64_t> saves = {first_save};
    std::vector<std::int64_t> mixes;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      if (layer > first_save && draw.chance(30)) saves.push_back(layer);
      if (is_mixed(first_save, layer)) mixes.push_back(layer);
    }
    if (list == 1 && mixes.empty()) mixes.push_back(model.layers - 1);
    model.config[fmt::format("bskcn_{}", list)] = saves;
    model.config[fmt::format("bskcn_{}", list + 2)] = mixes;
  }
  model.note += ", bskcn";
}

// q, k, v, o and a gated MLP as Llama and Cohere name them.
void add_gated_layer(Builder& build, const DrawnModel& model, const std::string& name, std::int64_t intermediate,
                     Biases attention_biases, Biases mlp_biases) {
  const std::int64_t query_width = model.heads * model.head_dim;
  const std::int64_t key_width = model.kv_heads * model.head_dim;
  build.linear({name + ".self_attn.q_proj", model.hidden, query_width}, attention_biases);
  build.linear({name + ".self_attn.k_proj", model.hidden, key_width}, attention_biases);
  build.linear({name + ".self_attn.v_proj", model.hidden, key_width}, attention_biases);
  build.linear({name + ".self_attn.o_proj", query_width, model.hidden}, attention_biases);
  build.linear({name + ".mlp.gate_proj", model.hidden, intermediate}, mlp_biases);
  build.linear({name + ".mlp.up_proj", model.hidden, intermediate}, mlp_biases);
  build.linear({name + ".mlp.down_proj", intermediate, model.hidden}, mlp_biases);
}

Biases draw_biases(DrawnModel& model, Draw& draw, const char* key) {
  if (!draw.chance(30)) return Biases::kNone;
  model.config[key] = true;
  model.note += fmt::format(", {}", key);
  return Biases::kPresent;
}

enum class RwLayout : std::uint8_t { kMultiQueryParallel, kNewDecoder, kAlibiSequential, kOther };

// Falcon's config in today's spelling or RefinedWeb's.
struct RwDraw {
  bool multi_query = true;
  bool parallel = true;
  bool alibi = false;
  bool new_decoder = false;
  std::int64_t num_norms = 2;
  std::int64_t intermediate = 0;
  Biases biases = Biases::kNone;
};

RwDraw draw_rw_layout(DrawnModel& model, Draw& draw) {
  RwDraw rw;
  const std::int64_t group = draw.between(1, 16);
  std::int64_t kv_heads = 1;
  switch (draw.one_of({RwLayout::kMultiQueryParallel, RwLayout::kNewDecoder, RwLayout::kNewDecoder,
                       RwLayout::kAlibiSequential, RwLayout::kOther})) {
    case RwLayout::kMultiQueryParallel:
      break;
    case RwLayout::kNewDecoder:
      rw.new_decoder = true;
      rw.num_norms = draw.between(1, 2);
      kv_heads = draw.between(1, std::clamp<std::int64_t>(20 / group, 1, 5));
      break;
    case RwLayout::kAlibiSequential:
      rw.multi_query = rw.parallel = false;
      rw.alibi = true;
      break;
    case RwLayout::kOther:
      rw.multi_query = draw.chance(50);
      rw.parallel = draw.chance(50);
      rw.alibi = draw.chance(50);
      break;
  }
  if (!rw.new_decoder && !rw.multi_query) {
    draw_fused_heads(model, draw, 1, group);
  } else {
    draw_fused_heads(model, draw, group, kv_heads);
  }
  rw.biases = draw.chance(rw.alibi ? 70 : 30) ? Biases::kPresent : Biases::kNone;
  model.note += fmt::format("{}{}{}{}", rw.new_decoder ? fmt::format(", new decoder with {} norms", rw.num_norms) : "",
                            rw.alibi ? ", alibi" : "", rw.parallel ? "" : ", sequential",
                            rw.biases == Biases::kPresent ? ", biases" : "");
  return rw;
}

void write_rw_config(DrawnModel& model, Draw& draw, const RwDraw& rw) {
  nlohmann::json& config = model.config;
  const bool legacy = draw.chance(30);
  config["architectures"] = nlohmann::json::array({legacy ? "RWForCausalLM" : "FalconForCausalLM"});
  // Only RefinedWeb says by a key-value head count that it is the new decoder.
  config["model_type"] = !legacy ? "falcon" : rw.new_decoder ? "RefinedWeb" : "RefinedWebModel";
  config[legacy ? "n_embed" : "hidden_size"] = model.hidden;
  config[legacy ? "n_layer" : "num_hidden_layers"] = model.layers;
  config[legacy ? "n_head" : "num_attention_heads"] = model.heads;
  config["multi_query"] = rw.multi_query;
  config["parallel_attn"] = rw.parallel;
  config["alibi"] = rw.alibi;
  config["bias"] = rw.biases == Biases::kPresent;
  config["layer_norm_epsilon"] = 1e-5;
  if (rw.new_decoder) config[legacy ? "n_head_kv" : "num_kv_heads"] = model.kv_heads;
  if (!legacy) config["new_decoder_architecture"] = rw.new_decoder;
  if (rw.new_decoder && (rw.num_norms == 1 || draw.chance(50))) config["num_ln_in_parallel_attn"] = rw.num_norms;
  if (rw.intermediate != 4 * model.hidden) config["ffn_hidden_size"] = rw.intermediate;
  if (!legacy || draw.chance(50))
    config["activation"] = draw.one_of<const char*>({"gelu", "gelu_pytorch_tanh", "relu"});
  if (!legacy) config["max_position_embeddings"] = draw.one_of({64, 2048});
  if (!rw.alibi && !legacy) draw_rotary(model, draw);
  if (legacy) model.note += ", legacy keys";
}

struct SantaCoderDraw {
  bool conv1d = false;
  bool split = false;
  bool multi_query = true;
  std::int64_t intermediate = 0;
};

void add_santacoder_layer(Builder& build, const DrawnModel& model, const SantaCoderDraw& santa,
                          const std::string& name) {
  const Orientation orientation = santa.conv1d ? Orientation::kInOut : Orientation::kOutIn;
  const std::int64_t key_value_width = 2 * model.kv_heads * model.head_dim;
  const std::int64_t hidden = model.hidden;
  build.norm(name + ".ln_1", Biases::kPresent);
  build.norm(name + ".ln_2", Biases::kPresent);
  if (santa.split) {
    build.linear({name + ".attn.q_attn", hidden, hidden, orientation}, Biases::kPresent);
    build.linear({name + ".attn.kv_attn", hidden, key_value_width, orientation}, Biases::kPresent);
  } else {
    build.linear({name + ".attn.c_attn", hidden, hidden + key_value_width, orientation}, Biases::kPresent);
  }
  build.linear({name + ".attn.c_proj", hidden, hidden, orientation}, Biases::kPresent);
  build.linear({name + ".mlp.c_fc", hidden, santa.intermediate, orientation}, Biases::kPresent);
  build.linear({name + ".mlp.c_proj", santa.intermediate, hidden, orientation}, Biases::kPresent);
}

}  // namespace

DrawnModel draw_solar(Draw& draw) {
  DrawnModel model = start_model(DrawnFamily::kSolar, draw);
  draw_free_heads(model, draw);
  const bool solar = draw.chance(40);
  model.config["architectures"] = nlohmann::json::array({solar ? "SolarForCausalLM" : "LlamaForCausalLM"});
  model.config["model_type"] = solar ? "solar" : "llama";
  if (solar) draw_bskcn(model, draw);
  const std::int64_t intermediate = draw.between(9, 250);
  model.config["intermediate_size"] = intermediate;
  model.config["num_hidden_layers"] = model.layers;
  model.config["max_position_embeddings"] = draw.one_of({48, 256, 2048});
  model.config["rms_norm_eps"] = 1e-5;
  model.config["hidden_act"] = draw.one_of<const char*>({"silu", "silu", "gelu", "relu"});
  draw_rotary(model, draw);
  if (draw.chance(35)) {
    const int window = draw.one_of({1, 5, 16, 33, 100});
    model.config["sliding_window"] = window;
    model.note += fmt::format(", window {}", window);
  }
  const Biases attention_biases = draw_biases(model, draw, "attention_bias");
  const Biases mlp_biases = draw_biases(model, draw, "mlp_bias");
  Builder build(model, draw);
  model.embedding = "model.embed_tokens.weight";
  build.embedding(model.embedding, model.vocab);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string name = fmt::format("model.layers.{}", i);
    build.norm(name + ".input_layernorm");
    build.norm(name + ".post_attention_layernorm");
    add_gated_layer(build, model, name, intermediate, attention_biases, mlp_biases);
  }
  build.norm("model.norm");
  build.head(/*default_tie=*/false, /*either_half=*/false);
  return model;
}

DrawnModel draw_rw(Draw& draw) {
  DrawnModel model = start_model(DrawnFamily::kRw, draw);
  RwDraw rw = draw_rw_layout(model, draw);
  rw.intermediate = model.hidden <= 96 && draw.chance(50) ? 4 * model.hidden : draw.between(9, 300);
  write_rw_config(model, draw, rw);
  Builder build(model, draw);
  model.embedding = "transformer.word_embeddings.weight";
  build.embedding(model.embedding, model.vocab);
  const bool two_norms = rw.new_decoder && rw.num_norms == 2;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string name = fmt::format("transformer.h.{}", i);
    build.norm(name + (two_norms ? ".ln_attn" : ".input_layernorm"), Biases::kPresent);
    if (two_norms) build.norm(name + ".ln_mlp", Biases::kPresent);
    if (!rw.parallel) build.norm(name + ".post_attention_layernorm", Biases::kPresent);
    const std::int64_t fused_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
    build.linear({name + ".self_attention.query_key_value", model.hidden, fused_width}, rw.biases);
    build.linear({name + ".self_attention.dense", model.hidden, model.hidden}, rw.biases);
    build.linear({name + ".mlp.dense_h_to_4h", model.hidden, rw.intermediate}, rw.biases);
    build.linear({name + ".mlp.dense_4h_to_h", rw.intermediate, model.hidden}, rw.biases);
  }
  build.norm("transformer.ln_f", Biases::kPresent);
  build.head(/*default_tie=*/true, /*either_half=*/true);
  return model;
}

DrawnModel draw_santacoder(Draw& draw) {
  DrawnModel model = start_model(DrawnFamily::kSantaCoder, draw);
  SantaCoderDraw santa;
  santa.conv1d = draw.chance(40);
  santa.split = santa.conv1d && draw.chance(50);
  santa.multi_query = santa.conv1d || draw.chance(60);
  const std::int64_t group = draw.between(1, 16);
  draw_fused_heads(model, draw, santa.multi_query ? group : 1, santa.multi_query ? 1 : group);
  // Only the rotary families need pairs.
  if (draw.chance(20)) {
    model.head_dim = draw.one_of<std::int64_t>({7, 15, 19});
    model.hidden = model.heads * model.head_dim;
  }
  santa.intermediate = model.hidden <= 96 && draw.chance(50) ? 4 * model.hidden : draw.between(9, 300);
  model.longest = draw.one_of<std::int64_t>({37, 100, 600, 600});
  nlohmann::json& config = model.config;
  config["architectures"] = nlohmann::json::array({santa.conv1d ? "GPT2LMHeadCustomModel" : "GPTBigCodeForCausalLM"});
  config["model_type"] = santa.conv1d ? "gpt2" : "gpt_bigcode";
  if (santa.conv1d) config["attention_head_type"] = "multiquery";
  if (!santa.multi_query) config["multi_query"] = false;
  config["n_embd"] = model.hidden;
  config["n_head"] = model.heads;
  config["n_layer"] = model.layers;
  config["n_positions"] = model.longest;
  config["layer_norm_epsilon"] = 1e-5;
  config["activation_function"] = draw.one_of<const char*>({"gelu", "gelu_pytorch_tanh", "gelu_fast"});
  if (santa.intermediate != 4 * model.hidden) config["n_inner"] = santa.intermediate;
  model.note += fmt::format(", {} positions{}", model.longest,
                            santa.split    ? ", conv1d split"
                            : santa.conv1d ? ", conv1d fused"
                                           : "");
  Builder build(model, draw);
  model.embedding = "transformer.wte.weight";
  build.embedding(model.embedding, model.vocab);
  build.embedding("transformer.wpe.weight", model.longest);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    add_santacoder_layer(build, model, santa, fmt::format("transformer.h.{}", i));
  }
  build.norm("transformer.ln_f", Biases::kPresent);
  build.head(/*default_tie=*/true, /*either_half=*/true);
  return model;
}

DrawnModel draw_cohere(Draw& draw) {
  DrawnModel model = start_model(DrawnFamily::kCohere, draw);
  draw_free_heads(model, draw);
  const std::int64_t intermediate = draw.between(9, 250);
  model.config["architectures"] = nlohmann::json::array({"CohereForCausalLM"});
  model.config["model_type"] = "cohere";
  model.config["intermediate_size"] = intermediate;
  model.config["num_hidden_layers"] = model.layers;
  model.config["layer_norm_eps"] = 1e-5;
  model.config["hidden_act"] = "silu";
  model.config["max_position_embeddings"] = draw.one_of({64, 8192});
  if (draw.chance(30)) model.config["model_max_length"] = draw.one_of({128, 4096});
  if (draw.chance(80)) model.config["logit_scale"] = draw.one_of({0.0625, 0.25, 0.8333333333333334});
  draw_rotary(model, draw);
  const Biases attention_biases = draw_biases(model, draw, "attention_bias");
  const bool use_qk_norm = draw.chance(50);
  model.config["use_qk_norm"] = use_qk_norm;
  if (use_qk_norm) model.note += ", qk norm";
  Builder build(model, draw);
  model.embedding = "model.embed_tokens.weight";
  build.embedding(model.embedding, model.vocab);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string name = fmt::format("model.layers.{}", i);
    build.norm(name + ".input_layernorm");
    if (use_qk_norm) {
      model.tensors[name + ".self_attn.q_norm.weight"] = draw_tensor(draw, {model.heads, model.head_dim}, 0.2F, 1.0F);
      model.tensors[name + ".self_attn.k_norm.weight"] =
          draw_tensor(draw, {model.kv_heads, model.head_dim}, 0.2F, 1.0F);
    }
    add_gated_layer(build, model, name, intermediate, attention_biases, Biases::kNone);
  }
  build.norm("model.norm");
  // A file with a head of its own and no word in the config is untied.
  build.head(/*default_tie=*/true, /*either_half=*/false);
  return model;
}

}  // namespace shoal
