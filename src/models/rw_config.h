// RwConfig: config.json of RefinedWeb and Falcon, in its old and new spellings. Used by rw.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/linear.h"
#include "layers/norm.h"
#include "models/config_keys.h"
#include "weights/row_order.h"

namespace shoal {

// How a block is wired, and with it which norms it has.
enum class RwWiring : std::uint8_t {
  kParallelOneNorm,   // input_layernorm feeds attention and MLP: 7B, 11B
  kParallelTwoNorms,  // ln_attn feeds attention, ln_mlp the MLP: 40B, 180B
  kSequential,        // input_layernorm, attention, post_attention_layernorm, MLP: falcon-rw
};

// Row order of the fused query_key_value.
enum class RwQkvRows : std::uint8_t { kQueryKeyValue, kGrouped, kInterleaved };

struct RwConfig {
  explicit RwConfig(const ConfigReader& config);

  // Of query_key_value, to Q | K | V.
  std::vector<RowRange> qkv_row_order() const;

  std::int64_t hidden, num_layers, heads, head_dim, vocab, intermediate, max_positions;
  bool alibi;
  NormOptions norm;
  Activation activation;
  Bias bias;
  HeadTie tie;
  RotaryOptions rotary;
  std::int64_t kv_heads = 0;
  RwWiring wiring = RwWiring::kParallelOneNorm;
  RwQkvRows qkv_rows = RwQkvRows::kQueryKeyValue;
};

}  // namespace shoal
