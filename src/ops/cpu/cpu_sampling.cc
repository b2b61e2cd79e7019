#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/parallel.h"
#include "ops/random.h"

namespace shoal::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kSpan = 1024;  // weights summed at a time while walking to the choice
constexpr std::int64_t kBuckets = 2048;

// The tokens still in play, in ascending order of id.
struct Candidates {
  std::int64_t count;
  std::int32_t* ids;  // [count]
  float* logits;      // [count]
  float* weights;     // [count] exp((logit - largest) / temperature)
  float* keys;        // scratch of a cut
  std::int32_t* order;
};

// Logits of one row after penalties and mask, and its parameters.
struct Row {
  const KernelTable& kernels;
  float* logits;
  std::int64_t vocab;
  RowScan scan;
  float temperature;
  std::int32_t top_k;
  float top_p;
  float typical_p;
  float min_p;
  float uniform;
  bool leave_kept;

  bool cuts() const { return (top_k > 0 && top_k < vocab) || top_p < 1.0F || typical_p < 1.0F || min_p > 0.0F; }
};

struct Choice {
  std::int64_t token = -1;
  float logprob = std::numeric_limits<float>::quiet_NaN();
};

void apply_penalties(const SamplingInput& in, std::int64_t row, std::int64_t slot, float* logits) {
  const std::int32_t* counts = in.token_counts.row<std::int32_t>(slot);
  const float repetition = in.repetition_penalty.data<float>()[row];
  const float frequency = in.frequency_penalty.data<float>()[row];
  const float presence = in.presence_penalty.data<float>()[row];
  for (std::int64_t id = 0; id < in.vocab; ++id) {
    if (counts[id] == 0) continue;
    const std::int32_t in_output = counts[id] & (kSeenInPrompt - 1);
    float logit = logits[id];
    logit = logit < 0.0F ? logit * repetition : logit / repetition;
    if (in_output > 0) logit -= frequency * static_cast<float>(in_output) + presence;
    logits[id] = logit;
  }
}

void apply_mask(const std::int32_t* words, std::int64_t vocab, float* logits) {
  for (std::int64_t word = 0; word * 32 < vocab; ++word) {
    const auto bits = static_cast<std::uint32_t>(words[word]);
    if (bits == ~std::uint32_t{0}) continue;
    const std::int64_t count = std::min<std::int64_t>(32, vocab - word * 32);
    for (std::int64_t i = 0; i < count; ++i) {
      if (((bits >> i) & 1U) == 0) logits[word * 32 + i] = -kInfinity;
    }
  }
}

// Falls as the value rises: the integer order of floats, turned around.
std::uint32_t descending_key(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffU;
}

// The k-th largest of `values`: a histogram of the keys' leading bits, then a selection inside one bucket.
float kth_largest(const float* values, std::int64_t count, std::int64_t k, float* scratch) {
  constexpr int kShift = 32 - 11;
  std::array<std::int32_t, kBuckets> histogram{};
  for (std::int64_t i = 0; i < count; ++i) ++histogram[descending_key(values[i]) >> kShift];
  std::int64_t before = 0;
  std::size_t bucket = 0;
  while (before + histogram[bucket] < k) before += histogram[bucket++];
  std::int64_t inside = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    scratch[inside] = values[i];
    inside += (descending_key(values[i]) >> kShift) == bucket ? 1 : 0;
  }
  float* kth = scratch + (k - before - 1);
  std::nth_element(scratch, kth, scratch + inside, std::greater<>());
  return *kth;
}

void collect(const Row& row, float threshold, Candidates& candidates) {
  std::int64_t count = 0;
  for (std::int64_t id = 0; id < row.vocab; ++id) {
    candidates.ids[count] = static_cast<std::int32_t>(id);
    candidates.logits[count] = row.logits[id];
    count += row.logits[id] >= threshold && row.logits[id] > -kInfinity ? 1 : 0;
  }
  candidates.count = count;
}

// Drops the candidates for which keep(i) is false.
template <typename Keep>
void filter(Candidates& candidates, const Keep& keep) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    const bool kept = keep(i);
    candidates.ids[count] = candidates.ids[i];
    candidates.logits[count] = candidates.logits[i];
    candidates.weights[count] = candidates.weights[i];
    count += kept ? 1 : 0;
  }
  candidates.count = count;
}

// Keeps the candidates of the smallest keys (>= 0), equal ones by id, until their weights reach `mass` of the total;
// one stays in any case. Only the bucket of keys in which the mass is reached is sorted.
void keep_mass(const KernelTable& kernels, double mass, Candidates& candidates) {
  const auto bucket_of = [&](std::int64_t i) {
    return static_cast<std::size_t>(std::min(candidates.keys[i] * 64.0F, static_cast<float>(kBuckets - 1)));
  };
  const double needed = mass * kernels.sum(candidates.weights, candidates.count);
  std::array<double, kBuckets> histogram{};
  for (std::int64_t i = 0; i < candidates.count; ++i) histogram[bucket_of(i)] += double{candidates.weights[i]};
  double before = 0.0;
  std::size_t bucket = 0;
  while (bucket + 1 < kBuckets && (histogram[bucket] == 0.0 || before + histogram[bucket] < needed)) {
    before += histogram[bucket++];
  }
  std::int64_t inside = 0;
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    if (bucket_of(i) == bucket) candidates.order[inside++] = static_cast<std::int32_t>(i);
  }
  std::sort(candidates.order, candidates.order + inside, [&](std::int32_t a, std::int32_t b) {
    return candidates.keys[a] != candidates.keys[b] ? candidates.keys[a] < candidates.keys[b] : a < b;
  });
  bool any = before > 0.0;
  for (std::int64_t i = 0; i < inside; ++i) {
    float& key = candidates.keys[candidates.order[i]];
    const double weight = double{candidates.weights[candidates.order[i]]};
    key = any && before >= needed ? kInfinity : 0.0F;
    before += weight;
    any = true;
  }
  filter(candidates, [&](std::int64_t i) { return bucket_of(i) <= bucket && candidates.keys[i] != kInfinity; });
}

void keep_top_p(const Row& row, Candidates& candidates) {
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    candidates.keys[i] = (row.scan.largest - candidates.logits[i]) / row.temperature;
  }
  keep_mass(row.kernels, double{row.top_p}, candidates);
}

// Locally typical sampling (Meister et al., 2022): the tokens whose surprise is nearest to the entropy.
void keep_typical(const Row& row, Candidates& candidates) {
  filter(candidates, [&](std::int64_t i) { return candidates.weights[i] > 0.0F; });
  const double total = row.kernels.sum(candidates.weights, candidates.count);
  const double log_total = std::log(total);
  const auto surprise = [&](std::int64_t i) {
    return log_total + (double{row.scan.largest} - double{candidates.logits[i]}) / double{row.temperature};
  };
  double entropy = 0.0;
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    entropy += double{candidates.weights[i]} / total * surprise(i);
  }
  for (std::int64_t i = 0; i < candidates.count; ++i) {
    candidates.keys[i] = static_cast<float>(std::abs(surprise(i) - entropy));
  }
  keep_mass(row.kernels, double{row.typical_p}, candidates);
}

void write_kept(const Row& row, const Candidates& candidates) {
  std::fill_n(row.logits, row.vocab, -kInfinity);
  for (std::int64_t i = 0; i < candidates.count; ++i) row.logits[candidates.ids[i]] = candidates.logits[i];
}

// The first index whose cumulative weight exceeds uniform * total; the last one with any weight if rounding hides it.
std::int64_t walk(const KernelTable& kernels, const float* weights, std::int64_t count, float uniform, double& total) {
  total = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kSpan) {
    total += kernels.sum(weights + begin, std::min(kSpan, count - begin));
  }
  const double target = double{uniform} * total;
  double cumulative = 0.0;
  std::int64_t last = 0;
  for (std::int64_t begin = 0; begin < count; begin += kSpan) {
    const std::int64_t end = std::min(begin + kSpan, count);
    const double after = cumulative + kernels.sum(weights + begin, end - begin);
    if (after > target || end == count) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (weights[i] == 0.0F) continue;
        cumulative += double{weights[i]};
        last = i;
        if (cumulative > target) return i;
      }
    }
    cumulative = after;
  }
  while (last > 0 && weights[last] == 0.0F) --last;
  return last;
}

Choice choose_sampled(const Row& row, Candidates candidates) {
  if (row.cuts()) {
    float threshold = -kInfinity;
    if (row.top_k > 0 && row.top_k < row.vocab) {
      threshold = kth_largest(row.logits, row.vocab, row.top_k, candidates.keys);
    }
    collect(row, threshold, candidates);
  } else {
    candidates.count = row.vocab;
    candidates.logits = row.logits;
  }
  row.kernels.softmax_weights(candidates.logits, row.scan.largest, row.temperature, candidates.count,
                              candidates.weights);
  if (row.top_p < 1.0F) keep_top_p(row, candidates);
  if (row.typical_p < 1.0F) keep_typical(row, candidates);
  if (row.min_p > 0.0F) {
    const float heaviest = *std::max_element(candidates.weights, candidates.weights + candidates.count);
    filter(candidates, [&](std::int64_t i) { return candidates.weights[i] >= row.min_p * heaviest; });
  }
  if (row.leave_kept && row.cuts()) write_kept(row, candidates);
  double total = 0.0;
  const std::int64_t at = walk(row.kernels, candidates.weights, candidates.count, row.uniform, total);
  const double shifted = (double{candidates.logits[at]} - double{row.scan.largest}) / double{row.temperature};
  return {row.cuts() ? std::int64_t{candidates.ids[at]} : at, static_cast<float>(shifted - std::log(total))};
}

Choice sample_row(const KernelTable& kernels, const SamplingInput& in, std::int64_t index, const Candidates& scratch) {
  float* logits = in.logits.row<float>(index);
  RowScan scan = kernels.scan_row(logits, in.vocab);
  if (scan.unusable) return {};
  const std::int64_t count_slot = in.count_slot.data<std::int32_t>()[index];
  const std::int64_t mask_slot = in.mask_slot.data<std::int32_t>()[index];
  if (count_slot >= 0) apply_penalties(in, index, count_slot, logits);
  if (mask_slot >= 0) apply_mask(in.mask.row<std::int32_t>(mask_slot), in.vocab, logits);
  if (count_slot >= 0 || mask_slot >= 0) scan = kernels.scan_row(logits, in.vocab);
  if (scan.unusable || scan.largest == -kInfinity) return {};
  if (in.greedy.data<std::uint8_t>()[index] != 0) {
    kernels.softmax_weights(logits, scan.largest, 1.0F, in.vocab, scratch.weights);
    return {scan.argmax, static_cast<float>(-std::log(kernels.sum(scratch.weights, in.vocab)))};
  }
  const float uniform = uniform_random(in.seed.data<std::int64_t>()[index], in.position.data<std::int32_t>()[index]);
  const Row row{.kernels = kernels,
                .logits = logits,
                .vocab = in.vocab,
                .scan = scan,
                .temperature = in.temperature.data<float>()[index],
                .top_k = in.top_k.data<std::int32_t>()[index],
                .top_p = in.top_p.data<float>()[index],
                .typical_p = in.typical_p.data<float>()[index],
                .min_p = in.min_p.data<float>()[index],
                .uniform = uniform,
                .leave_kept = in.leave_kept};
  return choose_sampled(row, scratch);
}

}  // namespace

// Spans of the vocabulary rather than rows: one row costs as much as a norm of the whole step.
void CpuBackend::add_watermark(Context&, const WatermarkInput& in, const Tensor& logits) const {
  constexpr std::int64_t kWatermarkSpan = 4096;
  const std::int64_t vocab = logits.dim(1);
  const std::int64_t num_spans = (vocab + kWatermarkSpan - 1) / kWatermarkSpan;
  pool_.parallel_for(logits.dim(0) * num_spans, [&](std::int64_t task) {
    const std::int64_t row = task / num_spans;
    const std::int64_t after = in.after.data<std::int64_t>()[row];
    if (after < 0) return;
    const std::int64_t begin = task % num_spans * kWatermarkSpan;
    add_watermark_to_row(in.ids.data<std::int64_t>()[after], in.gamma.data<float>()[row], in.delta.data<float>()[row],
                         begin, std::min(begin + kWatermarkSpan, vocab), logits.row<float>(row));
  });
}

void CpuBackend::sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const {
  const std::int64_t rows = in.logits.dim(0);
  if (rows == 0) return;
  const Arena::Scope scope(ctx.arena);
  const std::int64_t slots = std::min<std::int64_t>(pool_.num_threads(), rows);
  const Tensor floats = ctx.arena.take(DType::kFloat32, {slots, 3, in.vocab + 1});
  const Tensor ints = ctx.arena.take(DType::kInt32, {slots, 2, in.vocab + 1});
  parallel_slots(pool_, rows, [&](std::int64_t slot, std::int64_t row) {
    float* values = floats.row<float>(slot);
    std::int32_t* ids = ints.row<std::int32_t>(slot);
    const std::int64_t width = in.vocab + 1;  // the branch-free passes write one past what they keep
    const Candidates scratch{.count = 0,
                             .ids = ids,
                             .logits = values,
                             .weights = values + width,
                             .keys = values + 2 * width,
                             .order = ids + width};
    const Choice choice = sample_row(kernels_, in, row, scratch);
    out.token.data<std::int64_t>()[row] = choice.token;
    out.logprob.data<float>()[row] = choice.logprob;
  });
}

}  // namespace shoal::cpu
