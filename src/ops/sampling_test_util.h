// A batch of logits rows with their sampling parameters, and what came of it. Used by the sampling tests alone.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "ops/sampling.h"

namespace shoal {

// One logits row, every step off.
struct SamplingRow {
  std::vector<float> logits;
  bool greedy = false;
  float temperature = 1.0F;
  std::int32_t top_k = 0;
  float top_p = 1.0F;
  float typical_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::int64_t seed = 0;
  std::int32_t position = 0;
  std::vector<std::int32_t> counts = {};     // [vocab], or none
  std::vector<std::int64_t> allowed = {-1};  // ids that the mask allows; {-1}: no mask
};

struct Sampled {
  std::int64_t token = 0;
  float logprob = 0.0F;
  std::vector<float> kept = {};  // [vocab] what leave_kept leaves, where it was asked for
};

enum class Kept : std::uint8_t { kForget, kLeave };

// Samples all rows as one batch. The logits are `padding` columns wider than the vocabulary, with large values there.
std::vector<Sampled> sample_rows(Context& ctx, const std::vector<SamplingRow>& rows, std::int64_t padding = 3,
                                 Kept kept = Kept::kForget);

}  // namespace shoal
