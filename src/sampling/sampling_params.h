// SamplingParams: how one sequence chooses its tokens. Filled by server/, carried by the plan, read by Sampler.
#pragma once

#include <cstdint>

#include "ops/sampling.h"  // LogitBias, for who may not know ops/

namespace shoal {

// Neutral by default: greedy, no penalties. Ranges are checked by server/.
struct SamplingParams {
  bool greedy = true;
  float temperature = 1.0F;         // > 0
  std::int32_t top_k = 0;           // 0 = off
  float top_p = 1.0F;               // (0, 1]
  float typical_p = 1.0F;           // (0, 1]
  float min_p = 0.0F;               // [0, 1)
  float repetition_penalty = 1.0F;  // > 0
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::uint64_t seed = 0;
  float watermark_gamma = 0.0F;  // share of green tokens, in (0, 1); 0: no watermark
  float watermark_delta = 0.0F;  // what their logits get

  bool has_watermark() const { return watermark_gamma > 0.0F; }
  bool has_penalties() const {
    return repetition_penalty != 1.0F || frequency_penalty != 0.0F || presence_penalty != 0.0F;
  }
};

}  // namespace shoal
