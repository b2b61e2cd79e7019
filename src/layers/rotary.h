// Rotary: the table of angles for the served positions, with every scaling of Hugging Face's configs that we take.
// Used by Attention; one table a model.
#pragma once

#include <optional>
#include <string>

#include "layers/load_context.h"
#include "ops/rotary.h"

namespace shoal {

// Hugging Face's `rope_scaling`. Kind as in `rope_type`.
enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };

struct RotaryOptions {
  std::int64_t rotary_dim = 0;
  RotaryStyle style = RotaryStyle::kHalfSplit;
  double theta = 10000.0;
  std::int64_t max_positions = 0;  // max_position_embeddings of the config
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_max_positions = 0.0;                     // yarn, llama3
  double beta_fast = 32.0, beta_slow = 1.0;                // yarn
  std::optional<double> attention_factor = {};             // yarn
  std::optional<double> mscale = {}, mscale_all_dim = {};  // yarn
  bool truncate = true;                                    // yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;    // llama3
};

class Rotary {
 public:
  Rotary() = default;
  Rotary(const LoadContext& load, const RotaryOptions& options);

  const Tensor& cos_sin() const { return cos_sin_.values; }  // float32 [served positions, rotary_dim]
  RotaryStyle style() const { return style_; }

 private:
  Vector cos_sin_;
  RotaryStyle style_ = RotaryStyle::kHalfSplit;
};

// The frequency of each pair, float32 as transformers computes them; `served_positions` matters for kDynamic.
std::vector<float> rotary_frequencies(const RotaryOptions& options, std::int64_t served_positions);
// What cosines and sines are multiplied by: 1 except for yarn.
double rotary_attention_factor(const RotaryOptions& options);

}  // namespace shoal
