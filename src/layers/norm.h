// Norm: RMSNorm or LayerNorm over the hidden dimension. Used by the models and ParallelBlock.
#pragma once

#include <string>

#include "layers/load_context.h"

namespace shoal {

enum class NormKind : std::uint8_t {
  kRms,            // weight only, no mean
  kLayer,          // weight and bias
  kLayerBiasFree,  // weight only, mean subtracted (Cohere)
};

struct NormOptions {
  NormKind kind = NormKind::kRms;
  float epsilon = 0.0F;
};

class Norm {
 public:
  Norm() = default;
  Norm(LoadContext& load, const std::string& name, std::int64_t hidden, NormOptions options);

  // x [tokens, hidden] float32 -> [tokens, hidden] activations, from the arena.
  Tensor forward(Context& ctx, const Tensor& x) const;

 private:
  Vector weight_;  // [hidden]
  Vector bias_;    // [hidden] or none
  NormOptions options_;
  DType out_dtype_ = DType::kFloat32;
};

}  // namespace shoal
