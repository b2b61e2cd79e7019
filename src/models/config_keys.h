// Config keys that several families share. Used by the model files.
#pragma once

#include <cstdint>
#include <string>

#include "layers/lm_head.h"
#include "layers/rotary.h"
#include "ops/modes.h"
#include "weights/config_reader.h"

namespace shoal {

// rope_theta and rope_scaling, or transformers 5's rope_parameters. longrope and unknown kinds are refused.
RotaryOptions read_rotary(const ConfigReader& config, std::int64_t rotary_dim, RotaryStyle style,
                          std::int64_t max_positions);
// The activation that `key` names, or `absent` where the key is missing and that is allowed.
Activation read_activation(const ConfigReader& config, const char* key, const char* absent = nullptr);
HeadTie read_head_tie(const ConfigReader& config, bool absent);
// The embedding's name: `own_name`, or "lm_head.weight" where a tied checkpoint has that half alone.
std::string tied_embedding_name(const LoadContext& load, std::string_view own_name, HeadTie tie);
// heads must be a multiple of kv_heads; the message names both keys.
void check_head_counts(const ConfigReader& config, std::int64_t heads, std::int64_t kv_heads);

}  // namespace shoal
