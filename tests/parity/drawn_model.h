// DrawnModel: a small model of a family whose sizes, layout and weights follow from a seed, as a Hugging Face folder.
// Used by the property test.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "weights/weight_source.h"

namespace shoal {

// Choices that a seed decides, the same with every standard library (whose distributions may differ).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  // Both ends included.
  std::int64_t between(std::int64_t low, std::int64_t high);
  bool chance(int percent) { return between(1, 100) <= percent; }
  // Mean 0, deviation 1, within 3.5: close to a normal distribution.
  float noise();
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

// A tensor of a drawn file. Drawn values are bfloat16 values, so that each dtype computes with the same weights.
struct DrawnTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // row-major
};
using DrawnTensors = std::map<std::string, DrawnTensor>;

// Values of this deviation around `mean`.
DrawnTensor draw_tensor(Draw& draw, std::vector<std::int64_t> shape, float deviation, float mean = 0.0F);
// `dtype` is float32 or bfloat16.
void write_tensors(const std::string& path, const DrawnTensors& tensors, DType dtype);

// A linear layer that an adapter may change.
struct DrawnLinear {
  std::string path;  // "model.layers.0.self_attn.q_proj", "lm_head"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  Orientation orientation = Orientation::kOutIn;
};

enum class DrawnFamily : std::uint8_t { kSolar, kRw, kSantaCoder, kCohere };
std::string_view family_name(DrawnFamily family);

struct DrawnModel {
  DrawnFamily family = DrawnFamily::kSolar;
  nlohmann::json config;
  DrawnTensors tensors;
  std::vector<DrawnLinear> linears;  // the head too, also where it is tied
  std::string embedding;             // the tensor that a tied head reads
  std::int64_t layers = 2;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t longest = 0;  // tokens of a sequence
  DType file_dtype = DType::kFloat32;
  std::string note;  // what else was drawn

  std::int64_t group() const { return heads / kv_heads; }
  // One line for failure messages.
  std::string describe() const;
};

constexpr std::int64_t kLongestDrawnSequence = 600;

DrawnModel draw_model(DrawnFamily family, Draw& draw);
// config.json and model.safetensors into a folder that exists.
void write_model(const DrawnModel& model, const std::string& folder);

// --- one family each, for draw_model ---
DrawnModel draw_solar(Draw& draw);
DrawnModel draw_rw(Draw& draw);
DrawnModel draw_santacoder(Draw& draw);
DrawnModel draw_cohere(Draw& draw);

}  // namespace shoal
