#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/random.h"
#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

constexpr double kDropped = -std::numeric_limits<double>::infinity();

using Logits = std::vector<double>;  // [vocab]; a dropped token holds kDropped

void apply_penalties(const SamplingInput& in, std::int64_t row, Logits& logits) {
  const std::int64_t slot = in.count_slot.data<std::int32_t>()[row];
  if (slot < 0) return;
  const std::int32_t* counts = in.token_counts.row<std::int32_t>(slot);
  const float repetition = in.repetition_penalty.data<float>()[row];
  const float frequency = in.frequency_penalty.data<float>()[row];
  const float presence = in.presence_penalty.data<float>()[row];
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (counts[id] == 0) continue;
    const std::int32_t in_output = counts[id] & (kSeenInPrompt - 1);
    // In float: what ties here must tie in every backend.
    auto logit = static_cast<float>(logits[id]);
    logit = logit < 0.0F ? logit * repetition : logit / repetition;
    if (in_output > 0) logit -= frequency * static_cast<float>(in_output) + presence;
    logits[id] = double{logit};
  }
}

void apply_mask(const SamplingInput& in, std::int64_t row, Logits& logits) {
  const std::int64_t slot = in.mask_slot.data<std::int32_t>()[row];
  if (slot < 0) return;
  const std::int32_t* words = in.mask.row<std::int32_t>(slot);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const auto word = static_cast<std::uint32_t>(words[id / 32]);
    if (((word >> (id % 32)) & 1U) == 0) logits[id] = kDropped;
  }
}

// Probabilities of the kept tokens, not normalised: the largest is 1.
std::vector<double> weights_of(const Logits& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) weights[id] = std::exp(logits[id] - largest);
  return weights;
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Kept ids, in ascending order of `key`, then of id.
std::vector<std::size_t> kept_ids_by(const Logits& logits, const std::function<double(std::size_t)>& key) {
  std::vector<std::size_t> ids;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] != kDropped) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return ids;
}

// Drops what comes after the first ids whose mass reaches `mass`; the first id stays in any case.
void keep_mass(const std::vector<std::size_t>& ids, double mass, Logits& logits) {
  const std::vector<double> weights = weights_of(logits);
  const double needed = mass * sum_of(weights);
  double before = 0.0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && before >= needed) logits[ids[i]] = kDropped;
    before += weights[ids[i]];
  }
}

void keep_top_k(std::int64_t k, Logits& logits) {
  if (k <= 0 || k >= std::ssize(logits)) return;
  Logits sorted = logits;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const double threshold = sorted[static_cast<std::size_t>(k - 1)];
  for (double& logit : logits) {
    if (logit < threshold) logit = kDropped;
  }
}

void keep_top_p(double p, Logits& logits) {
  if (p >= 1.0) return;
  keep_mass(kept_ids_by(logits, [&](std::size_t id) { return -logits[id]; }), p, logits);
}

// Locally typical sampling (Meister et al., 2022): the tokens whose surprise is nearest to the entropy.
void keep_typical(double p, Logits& logits) {
  if (p >= 1.0) return;
  const std::vector<double> weights = weights_of(logits);
  const double total = sum_of(weights);
  std::vector<double> surprise(logits.size(), 0.0);
  double entropy = 0.0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const double probability = weights[id] / total;
    if (probability == 0.0) {
      logits[id] = kDropped;
      continue;
    }
    surprise[id] = -std::log(probability);
    entropy += probability * surprise[id];
  }
  keep_mass(kept_ids_by(logits, [&](std::size_t id) { return std::abs(surprise[id] - entropy); }), p, logits);
}

void keep_min_p(double p, Logits& logits) {
  if (p <= 0.0) return;
  const std::vector<double> weights = weights_of(logits);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (weights[id] < std::min(p, 1.0)) logits[id] = kDropped;
  }
}

// The first id whose cumulative probability exceeds `uniform`.
std::size_t choose(const Logits& logits, double uniform) {
  const std::vector<double> weights = weights_of(logits);
  const double target = uniform * sum_of(weights);
  double cumulative = 0.0;
  std::size_t last_kept = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0.0) continue;
    cumulative += weights[id];
    last_kept = id;
    if (cumulative > target) return id;
  }
  return last_kept;
}

bool usable(const Logits& logits) {
  return std::none_of(logits.begin(), logits.end(), [](double logit) {
    return std::isnan(logit) || logit == std::numeric_limits<double>::infinity();
  });
}

// The row's id, with `logits` left as the choice saw them, and before that as they were after penalties and mask; -1 if
// it cannot be sampled.
std::int64_t sample_row(const SamplingInput& in, std::int64_t row, Logits& logits, Logits& penalised) {
  if (!usable(logits)) return -1;
  apply_penalties(in, row, logits);
  if (!usable(logits)) return -1;
  apply_mask(in, row, logits);
  penalised = logits;
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first one on ties
  if (*largest == kDropped) return -1;
  if (in.greedy.data<std::uint8_t>()[row] != 0) return largest - logits.begin();

  // Differences to the largest keep a tiny temperature from overflowing.
  const double shift = *largest;
  const double temperature = double{in.temperature.data<float>()[row]};
  for (double& logit : logits) logit = (logit - shift) / temperature;
  keep_top_k(in.top_k.data<std::int32_t>()[row], logits);
  keep_top_p(double{in.top_p.data<float>()[row]}, logits);
  keep_typical(double{in.typical_p.data<float>()[row]}, logits);
  keep_min_p(double{in.min_p.data<float>()[row]}, logits);
  const float uniform = uniform_random(in.seed.data<std::int64_t>()[row], in.position.data<std::int32_t>()[row]);
  return static_cast<std::int64_t>(choose(logits, double{uniform}));
}

}  // namespace

void ReferenceBackend::sample(Context&, const SamplingInput& in, const SamplingOutput& out) const {
  for (std::int64_t row = 0; row < in.logits.dim(0); ++row) {
    float* values = in.logits.row<float>(row);
    Logits logits(values, values + in.vocab);
    Logits penalised;
    const std::int64_t token = sample_row(in, row, logits, penalised);
    out.token.data<std::int64_t>()[row] = token;
    float& logprob = out.logprob.data<float>()[row];
    logprob = std::numeric_limits<float>::quiet_NaN();
    if (token < 0) continue;
    for (std::size_t id = 0; in.leave_kept && id < logits.size(); ++id) {
      values[id] = static_cast<float>(logits[id] == kDropped ? kDropped : penalised[id]);
    }
    const double chosen = std::log(weights_of(logits)[static_cast<std::size_t>(token)]);
    logprob = static_cast<float>(chosen - std::log(sum_of(weights_of(logits))));
  }
}

}  // namespace shoal
