#include "parity/drawn_adapter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>

namespace shoal {
namespace {

std::string leaf_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// "model.layers.3.mlp.up_proj" -> 3; nothing for the head.
std::optional<std::int64_t> layer_of(const std::string& path) {
  const std::size_t digit = path.find_first_of("0123456789");
  if (digit == std::string::npos) return std::nullopt;
  return std::stoll(path.substr(digit));
}

// The modules that target_modules and layers_to_transform leave.
std::vector<DrawnLinear> draw_targets(const DrawnModel& model, nlohmann::json& config, Draw& draw) {
  std::set<std::string> leaves;
  for (const DrawnLinear& linear : model.linears) leaves.insert(leaf_of(linear.path));
  std::set<std::string> targets;
  const int share = draw.one_of({25, 60, 100});
  for (const std::string& leaf : leaves) {
    if (draw.chance(share)) targets.insert(leaf);
  }
  const std::string chosen_leaf = leaf_of(model.linears[static_cast<std::size_t>(draw.between(0, 3))].path);
  if (targets.empty()) targets.insert(chosen_leaf);
  std::optional<std::int64_t> only_layer;
  if (draw.chance(20)) only_layer = draw.between(0, model.layers - 1);
  // PEFT leaves modules outside the layers alone when it is told which layers to change.
  if (only_layer) targets.insert(chosen_leaf);
  config["target_modules"] = targets;
  config["layers_to_transform"] =
      only_layer ? nlohmann::json(std::vector<std::int64_t>{*only_layer}) : nlohmann::json();
  std::vector<DrawnLinear> linears;
  for (const DrawnLinear& linear : model.linears) {
    if (!targets.contains(leaf_of(linear.path))) continue;
    if (only_layer && layer_of(linear.path) != only_layer) continue;
    linears.push_back(linear);
  }
  return linears;
}

// A pattern's key stands for the modules whose path ends with it.
bool key_matches(const std::string& path, const std::string& key) { return path == key || path.ends_with("." + key); }

// Sometimes a key that one module or all of a kind match, with its value.
template <typename T>
std::optional<std::pair<std::string, T>> draw_pattern(const std::vector<DrawnLinear>& linears, Draw& draw,
                                                      std::initializer_list<T> values) {
  if (!draw.chance(30)) return std::nullopt;
  const auto index = draw.between(0, static_cast<std::int64_t>(linears.size()) - 1);
  const std::string& path = linears[static_cast<std::size_t>(index)].path;
  const std::size_t layer_digit = path.find_first_of("0123456789");
  const bool one_module = draw.chance(50) && layer_digit != std::string::npos;
  return std::pair(one_module ? path.substr(layer_digit) : leaf_of(path), draw.one_of(values));
}

// A and B such that the change is a good part of W x, whatever alpha and rank are.
void draw_pair(DrawnAdapter& adapter, const DrawnDelta& delta, Draw& draw) {
  const DrawnLinear& linear = delta.linear;
  const std::string prefix = "base_model.model." + linear.path;
  const float strength = draw.one_of({0.3F, 1.0F});
  const auto b_deviation = static_cast<float>(strength / (std::abs(delta.scale) * std::sqrt(delta.rank)));
  adapter.tensors[prefix + ".lora_A.weight"] =
      draw_tensor(draw, {delta.rank, linear.in_features}, 1.0F / std::sqrt(static_cast<float>(linear.in_features)));
  adapter.tensors[prefix + ".lora_B.weight"] = draw_tensor(draw, {linear.out_features, delta.rank}, b_deviation);
}

void add_delta(DrawnTensor& weight, const DrawnDelta& delta, const DrawnTensor& a, const DrawnTensor& b) {
  const auto in = static_cast<std::size_t>(delta.linear.in_features);
  const auto out = static_cast<std::size_t>(delta.linear.out_features);
  const auto rank = static_cast<std::size_t>(delta.rank);
  std::vector<double> row(in);
  for (std::size_t o = 0; o < out; ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t r = 0; r < rank; ++r) {
      const double factor = delta.scale * static_cast<double>(b.values[o * rank + r]);
      const float* a_row = a.values.data() + r * in;
      for (std::size_t i = 0; i < in; ++i) row[i] += factor * static_cast<double>(a_row[i]);
    }
    for (std::size_t i = 0; i < in; ++i) {
      float& value = weight.values[delta.linear.orientation == Orientation::kOutIn ? o * in + i : i * out + o];
      value = static_cast<float>(static_cast<double>(value) + row[i]);
    }
  }
}

}  // namespace

std::string DrawnAdapter::describe() const {
  return fmt::format("adapter of rank {}, {} modules, alpha {}{}, {}", rank, deltas.size(), config["lora_alpha"].dump(),
                     config["use_rslora"].get<bool>() ? " rslora" : "", dtype_name(file_dtype));
}

DrawnAdapter draw_adapter(const DrawnModel& model, std::int64_t rank, Draw& draw) {
  DrawnAdapter adapter;
  adapter.rank = rank;
  adapter.file_dtype = draw.one_of({DType::kFloat32, DType::kBFloat16});
  const double alpha = draw.one_of({1.0, 8.0, 16.0, 32.5, 512.0});
  const bool use_rslora = draw.chance(30);
  adapter.config = {{"peft_type", "LORA"},
                    {"task_type", "CAUSAL_LM"},
                    {"r", rank},
                    {"lora_alpha", alpha},
                    {"use_rslora", use_rslora},
                    {"bias", "none"},
                    {"base_model_name_or_path", nullptr},
                    {"fan_in_fan_out", model.linears.front().orientation == Orientation::kInOut}};
  const std::vector<DrawnLinear> linears = draw_targets(model, adapter.config, draw);
  const auto alpha_pattern = draw_pattern(linears, draw, {2.0, 24.0});
  const auto rank_pattern = draw_pattern<std::int64_t>(linears, draw, {1, 5, 64});
  adapter.config["alpha_pattern"] = nlohmann::json::object();
  adapter.config["rank_pattern"] = nlohmann::json::object();
  if (alpha_pattern) adapter.config["alpha_pattern"][alpha_pattern->first] = alpha_pattern->second;
  if (rank_pattern) adapter.config["rank_pattern"][rank_pattern->first] = rank_pattern->second;
  for (const DrawnLinear& linear : linears) {
    DrawnDelta delta{.linear = linear, .rank = rank};
    if (rank_pattern && key_matches(linear.path, rank_pattern->first)) delta.rank = rank_pattern->second;
    const bool own_alpha = alpha_pattern && key_matches(linear.path, alpha_pattern->first);
    const auto divisor = static_cast<double>(delta.rank);
    delta.scale = (own_alpha ? alpha_pattern->second : alpha) / (use_rslora ? std::sqrt(divisor) : divisor);
    draw_pair(adapter, delta, draw);
    adapter.deltas.push_back(delta);
  }
  return adapter;
}

void write_adapter(const DrawnAdapter& adapter, const std::string& folder) {
  std::ofstream(folder + "/adapter_config.json") << adapter.config.dump(2);
  write_tensors(folder + "/adapter_model.safetensors", adapter.tensors, adapter.file_dtype);
}

DrawnModel merge(const DrawnModel& model, const DrawnAdapter& adapter) {
  DrawnModel merged = model;
  merged.file_dtype = DType::kFloat32;
  for (const DrawnDelta& delta : adapter.deltas) {
    const std::string& path = delta.linear.path;
    const bool own_weight =
        path != "lm_head" || (model.tensors.contains("lm_head.weight") && model.tensors.contains(model.embedding));
    if (!own_weight) {
      // A tied pair in one tensor, under either name.
      const DrawnTensor shared = model.tensors.contains("lm_head.weight") ? model.tensors.at("lm_head.weight")
                                                                          : model.tensors.at(model.embedding);
      merged.tensors["lm_head.weight"] = merged.tensors[model.embedding] = shared;
      merged.config["tie_word_embeddings"] = false;
    }
    add_delta(merged.tensors.at(path + ".weight"), delta,
              adapter.tensors.at("base_model.model." + path + ".lora_A.weight"),
              adapter.tensors.at("base_model.model." + path + ".lora_B.weight"));
  }
  return merged;
}

}  // namespace shoal
