// TokenScore: how likely a token was, and which others were likelier. Made by TokenScorer, carried by StepResult and
// the events of an answer, written by server/.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/ranking.h"

namespace shoal {

inline constexpr std::int64_t kMostTopTokens = kMostTopLogits;  // that may stand beside a score

enum class ScoreKind : std::uint8_t {
  kNone,
  kModel,    // log-softmax of the model's own logits
  kSampled,  // of the distribution that was sampled: after penalties, mask, temperature and cuts
};

struct TokenLogprob {
  std::int64_t id = 0;
  float logprob = 0.0F;  // -infinity: it could not be sampled
};

struct TokenScore {
  float logprob = 0.0F;
  std::int32_t rank = 0;               // 1: no token was likelier
  std::vector<TokenLogprob> top = {};  // the likeliest, in order
};

}  // namespace shoal
