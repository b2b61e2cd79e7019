// Sampling: one launch, a team of blocks (a thread block cluster) a row. The row stays in place in its logits; a cut
// overwrites what it drops with -inf. Nothing is sorted: a cut finds its last key digit by digit (radix selection).
// Weights are doubles as in the reference, their sums integers (see Units), so a row's result is the same in any batch.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/logit_order.cuh"
#include "ops/cuda/sampling_team.cuh"

namespace shoal::cuda {
namespace {

constexpr int kTeamBlocks = 8;                 // what every GPU with clusters can place
constexpr std::int64_t kOneBlockVocab = 8192;  // up to here one block is as fast
constexpr int kBatch = 4;                      // logits that a thread has under way
constexpr int kCountThreads = 256;
constexpr int kLogitKeyBits = 32;
constexpr int kDistanceKeyBits = 63;
constexpr float kInfinity = INFINITY;
constexpr Units kUnusable = ~Units{0};  // above every best_of()

// SamplingInput as a kernel takes it; [rows] each unless it says otherwise.
struct SampleArgs {
  float* logits;  // [rows, vocab], rows logits_stride apart
  std::int64_t logits_stride, vocab;
  const std::uint8_t* greedy;
  const float *temperature, *top_p, *typical_p, *min_p, *repetition_penalty, *frequency_penalty, *presence_penalty;
  const std::int32_t *top_k, *position, *count_slot, *mask_slot;
  const std::int64_t* seed;
  const std::int32_t* token_counts;  // [slots, vocab] or null
  const std::int32_t* mask;          // [slots, ceil(vocab / 32)] or null
  double unit_scale;                 // units of a weight of 1: a power of two
  bool leave_kept;
  std::int64_t* token;
  float* logprob;
};

// The row's logits and the ids [begin, end) that this warp looks after, in the order of the team's warps.
struct Row {
  float* logits;  // [vocab]
  int begin, end;
};

__device__ Row row_of(const SampleArgs& args, std::int64_t row, const Team& team) {
  const auto vocab = static_cast<int>(args.vocab);
  // A multiple of 32: a warp reads one word of the mask at a time.
  const int share = ((vocab + team.warps() - 1) / team.warps() + kWarp - 1) / kWarp * kWarp;
  const int begin = min(team.warp() * share, vocab);
  return {.logits = args.logits + row * args.logits_stride, .begin = begin, .end = min(begin + share, vocab)};
}

// f(id, logit) for this thread's part of the row.
template <typename F>
__device__ void for_each_logit(const Row& row, int lane, const F& f) {
  for (int base = row.begin + lane; base < row.end; base += kBatch * kWarp) {
    float logits[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int id = base + i * kWarp;
      if (id < row.end) logits[i] = row.logits[id];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int id = base + i * kWarp;
      if (id < row.end) f(id, logits[i]);
    }
  }
}

// --- penalties and mask ---

struct Penalties {
  const std::int32_t* counts;  // [vocab] or null
  float repetition, frequency, presence;

  // Rounded after each operation, as on the host: what ties there must tie here.
  __device__ float applied(int id, float logit) const {
    const std::int32_t count = __ldg(counts + id);
    if (count == 0) return logit;
    logit = logit < 0.0F ? __fmul_rn(logit, repetition) : __fdiv_rn(logit, repetition);
    const std::int32_t in_output = count & (kSeenInPrompt - 1);
    if (in_output == 0) return logit;
    return __fsub_rn(logit, __fadd_rn(__fmul_rn(frequency, static_cast<float>(in_output)), presence));
  }
};

__device__ Penalties penalties_of(const SampleArgs& args, std::int64_t row) {
  const std::int64_t slot = args.token_counts == nullptr ? -1 : args.count_slot[row];
  return {.counts = slot < 0 ? nullptr : args.token_counts + slot * args.vocab,
          .repetition = args.repetition_penalty[row],
          .frequency = args.frequency_penalty[row],
          .presence = args.presence_penalty[row]};
}

// [ceil(vocab / 32)] or null.
__device__ const std::int32_t* mask_of(const SampleArgs& args, std::int64_t row) {
  const std::int64_t slot = args.mask == nullptr ? -1 : args.mask_slot[row];
  return slot < 0 ? nullptr : args.mask + slot * ((args.vocab + 31) / 32);
}

// Writes the logits after penalties and mask; best_of() the first of the largest, or kUnusable.
__device__ Units prepare(Team& team, const Row& row, const Penalties& penalties, const std::int32_t* mask) {
  Units best = 0;
  for_each_logit(row, team.lane(), [&](int id, float logit) {
    bool usable = logit < kInfinity;  // nor is NaN
    if (penalties.counts != nullptr) {
      logit = penalties.applied(id, logit);
      usable = usable && logit < kInfinity;
    }
    if (mask != nullptr && ((static_cast<std::uint32_t>(__ldg(mask + id / 32)) >> (id % 32)) & 1U) == 0) {
      logit = -kInfinity;
    }
    if (penalties.counts != nullptr || mask != nullptr) row.logits[id] = logit;
    best = max(best, usable ? best_of(id, logit) : kUnusable);
  });
  return team.max_of(best);
}

// --- weights ---

// Probabilities of the kept tokens, not normalised: the largest is 1. Dropped tokens have none.
struct Weights {
  double largest;  // logit
  double inverse_temperature;
  double unit_scale;

  // Rounded after each operation wherever it is inlined: a key must be the same whenever it is computed.
  __device__ double scaled(float logit) const {
    return __dmul_rn(__dsub_rn(double{logit}, largest), inverse_temperature);
  }
  __device__ Units units_of_weight(double weight) const { return __double2ull_rn(weight * unit_scale); }
  __device__ Units units(float logit) const { return units_at_least(logit, 0.0); }
  // None for a weight below `least`.
  __device__ Units units_at_least(float logit, double least) const {
    constexpr double kNoUnits = -45.0;  // exp of it is below half of 2^-63
    const double exponent = scaled(logit);
    if (!(exponent > kNoUnits)) return 0;
    const double weight = exp(exponent);
    return weight < least ? 0 : units_of_weight(weight);
  }
  __device__ double log_of(Units sum) const { return log(static_cast<double>(sum) / unit_scale); }
};

// --- cuts ---

// Where a cut ends: of the tokens with this key only so many stay that the units `needed` are reached.
struct LastKey {
  Units key;
  Units before;  // units of the smaller keys
  Units needed;
};

// Adds amount_of(logit) in ascending order of key_of(logit) < 2^key_bits, up to the key where needed_of(total) is
// reached. The keys' digits are found from the top, each among the tokens that share the digits above.
template <typename KeyOf, typename AmountOf, typename NeededOf>
__device__ LastKey find_last_key(Team& team, const Row& row, int key_bits, const KeyOf& key_of,
                                 const AmountOf& amount_of, const NeededOf& needed_of) {
  LastKey last{};
  for (int shift = key_bits; shift > 0;) {
    const int width = min(kDigitBits, shift);
    shift -= width;
    team.clear_bins();
    for_each_logit(row, team.lane(), [&](int, float logit) {
      if (logit == -kInfinity) return;
      const Units digits = key_of(logit) >> shift;
      if (digits >> width != last.key) return;
      team.add_to_bin(static_cast<int>(digits & ((1U << width) - 1)), amount_of(logit));
    });
    const FoundBin found =
        team.find_bin(last.before, [&](Units total) { return last.needed > 0 ? last.needed : needed_of(total); });
    last = {.key = (last.key << width) | static_cast<Units>(found.bin), .before = found.before, .needed = found.needed};
  }
  return last;
}

__device__ Units falling_key(float logit) { return static_cast<std::uint32_t>(~rising_key(logit)); }

__device__ void keep_top_k(Team& team, const Row& row, std::int64_t k, std::int64_t vocab) {
  if (k <= 0 || k >= vocab) return;
  const LastKey last = find_last_key(
      team, row, kLogitKeyBits, falling_key, [](float) { return Units{1}; },
      [&](Units total) { return min(static_cast<Units>(k), total); });
  for_each_logit(row, team.lane(), [&](int id, float logit) {
    if (falling_key(logit) > last.key) row.logits[id] = -kInfinity;
  });
}

// Drops what comes after the first tokens, in ascending order of key and then of id, whose units reach `mass` of all;
// the first stays in any case.
template <typename KeyOf>
__device__ void keep_mass(Team& team, const Row& row, int key_bits, const KeyOf& key_of, double mass,
                          const Weights& weights) {
  const auto units_of = [&](float logit) { return weights.units(logit); };
  const LastKey last = find_last_key(team, row, key_bits, key_of, units_of, [&](Units total) {
    return max(Units{1}, min(total, __double2ull_ru(mass * static_cast<double>(total))));
  });
  const auto ties = [&](float logit) { return logit != -kInfinity && key_of(logit) == last.key; };
  Units of_ties = 0;
  for_each_logit(row, team.lane(), [&](int, float logit) {
    if (ties(logit)) of_ties += weights.units(logit);
  });
  Units before = last.before + team.sums_of(of_ties).before;
  for (int base = row.begin; base < row.end; base += kWarp) {
    const int id = base + team.lane();
    const float logit = id < row.end ? row.logits[id] : -kInfinity;
    const bool tie = ties(logit);
    Units reached = before;
    Units units = 0;
    if (__any_sync(kAllLanes, tie)) {
      units = tie ? weights.units(logit) : 0;
      reached += warp_prefix_sum(units, team.lane());
    }
    const bool kept = key_of(logit) < last.key || (tie && reached - units < last.needed);
    if (id < row.end && !kept) row.logits[id] = -kInfinity;
    before = __shfl_sync(kAllLanes, reached, kWarp - 1);
  }
}

// Locally typical sampling (Meister et al., 2022): the tokens whose surprise is nearest to the entropy.
// Leaves `weights` relative to the largest logit that stays.
__device__ void keep_typical(Team& team, const Row& row, double p, Weights& weights) {
  Units sum = 0;
  Units surprise_sum = 0;  // a weight of w <= 1 adds w * -log(w), which is less than 1 too
  for_each_logit(row, team.lane(), [&](int, float logit) {
    const Units units = weights.units(logit);
    if (units == 0) return;
    const double exponent = weights.scaled(logit);
    sum += units;
    surprise_sum += weights.units_of_weight(exp(exponent) * -exponent);
  });
  const Units total = team.sums_of(sum).total;
  // The surprise is log(total) - scaled: the entropy, their mean, minus that constant.
  const double entropy = static_cast<double>(team.sums_of(surprise_sum).total) / static_cast<double>(total);
  keep_mass(
      team, row, kDistanceKeyBits,
      [&](float logit) {
        return static_cast<Units>(__double_as_longlong(fabs(__dadd_rn(weights.scaled(logit), entropy))));
      },
      p, weights);
  Units best = 0;
  for_each_logit(row, team.lane(), [&](int id, float logit) { best = max(best, best_of(id, logit)); });
  weights.largest = double{logit_of_best(team.max_of(best))};
}

// --- choice ---

struct PhiloxBlock {
  std::uint32_t x[4];
};

// As in ops/random.h.
__device__ PhiloxBlock philox4x32(std::uint64_t key, PhiloxBlock counter) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t(&x)[4] = counter.x;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x[2];
    x[0] = static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0;
    x[1] = static_cast<std::uint32_t>(product1);
    x[2] = static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1;
    x[3] = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// uniform_random() of ops/random.h, times 2^24.
__device__ std::uint32_t uniform_24_bits(std::int64_t seed, std::int32_t position) {
  return philox4x32(static_cast<std::uint64_t>(seed), {{static_cast<std::uint32_t>(position), 0, 0, 0}}).x[0] >> 8;
}

struct Choice {
  std::int64_t* token;
  float* logprob;

  __device__ void set(std::int64_t id, double log_probability) const {
    *token = id;
    *logprob = static_cast<float>(log_probability);
  }
};

// What choose() passes over, dropped as the other cuts do it.
__device__ void keep_min_p(const Team& team, const Row& row, double min_p, const Weights& weights) {
  if (!(min_p > 0.0)) return;
  const double least = min(min_p, 1.0);
  for_each_logit(row, team.lane(), [&](int id, float logit) {
    if (weights.units_at_least(logit, least) == 0) row.logits[id] = -kInfinity;
  });
}

// The first id whose cumulative probability exceeds uniform / 2^24, among those of at least min_p of the largest.
__device__ void choose(Team& team, const Row& row, double min_p, std::uint32_t uniform, const Weights& weights,
                       const Choice& choice) {
  const double least = min(min_p, 1.0);
  Units sum = 0;
  for_each_logit(row, team.lane(), [&](int, float logit) { sum += weights.units_at_least(logit, least); });
  const Team::Sums sums = team.sums_of(sum);
  const Units target = (__umul64hi(sums.total, uniform) << 40) | ((sums.total * uniform) >> 24);
  if (target < sums.before || target >= sums.before + sums.own) return;  // another warp's
  Units before = sums.before;
  for (int base = row.begin; base < row.end; base += kWarp) {
    const int id = base + team.lane();
    const float logit = id < row.end ? row.logits[id] : -kInfinity;
    const Units units = weights.units_at_least(logit, least);
    const Units reached = before + warp_prefix_sum(units, team.lane());
    if (reached > target && reached - units <= target) {
      choice.set(id, weights.scaled(logit) - weights.log_of(sums.total));
    }
    before = __shfl_sync(kAllLanes, reached, kWarp - 1);
    if (before > target) return;
  }
}

// log-softmax of the largest logit. In float: a greedy row does without the cost of double.
__device__ double greedy_logprob(Team& team, const Row& row, float largest, double unit_scale) {
  const auto scale = static_cast<float>(unit_scale);
  Units sum = 0;
  for_each_logit(row, team.lane(), [&](int, float logit) { sum += __float2ull_rn(expf(logit - largest) * scale); });
  return -log(static_cast<double>(team.sums_of(sum).total) / unit_scale);
}

__device__ void sample_row(Team& team, const SampleArgs& args, std::int64_t row_index) {
  const Row row = row_of(args, row_index, team);
  const Choice choice{.token = args.token + row_index, .logprob = args.logprob + row_index};
  const bool writes = team.warp() == 0 && team.lane() == 0;
  const Units best = prepare(team, row, penalties_of(args, row_index), mask_of(args, row_index));
  const float largest = logit_of_best(best);
  if (best == kUnusable || largest == -kInfinity) {
    if (writes) choice.set(-1, double{NAN});
    return;
  }
  if (args.greedy[row_index] != 0) {
    const double logprob = greedy_logprob(team, row, largest, args.unit_scale);
    if (writes) choice.set(id_of_best(best), logprob);
    return;
  }
  Weights weights{.largest = double{largest},
                  .inverse_temperature = 1.0 / double{args.temperature[row_index]},
                  .unit_scale = args.unit_scale};
  keep_top_k(team, row, args.top_k[row_index], args.vocab);
  const double top_p = double{args.top_p[row_index]};
  if (top_p < 1.0) keep_mass(team, row, kLogitKeyBits, falling_key, top_p, weights);
  const double typical_p = double{args.typical_p[row_index]};
  if (typical_p < 1.0) keep_typical(team, row, typical_p, weights);
  if (args.leave_kept) keep_min_p(team, row, double{args.min_p[row_index]}, weights);
  choose(team, row, double{args.min_p[row_index]}, uniform_24_bits(args.seed[row_index], args.position[row_index]),
         weights, choice);
}

__global__ void __launch_bounds__(kTeamThreads) sample_kernel(SampleArgs args) {
  __shared__ TeamMemory memory;
  Team team(memory);
  sample_row(team, args, blockIdx.y);
}

// A block a row; a thread each of its biases in turn, which are of different ids.
__global__ void add_biases_kernel(const std::int32_t* begin, const LogitBias* biases, float* logits,
                                  std::int64_t logits_stride) {
  float* row = logits + blockIdx.x * logits_stride;
  for (std::int32_t i = begin[blockIdx.x] + static_cast<std::int32_t>(threadIdx.x); i < begin[blockIdx.x + 1];
       i += kCountThreads) {
    row[biases[i].id] = __fadd_rn(row[biases[i].id], biases[i].value);
  }
}

// A thread for four ids, which share a block of random words; grid [blocks, rows].
__global__ void add_watermark_kernel(const std::int64_t* ids, const std::int64_t* after, const float* gamma,
                                     const float* delta, float* logits, std::int64_t logits_stride,
                                     std::int64_t vocab) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (after[row] < 0 || first >= vocab) return;
  const std::uint64_t key = kWatermarkKey * static_cast<std::uint64_t>(ids[after[row]]);
  const PhiloxBlock words = philox4x32(key, {{static_cast<std::uint32_t>(first / 4), 0, 0, 1}});
  float* values = logits + row * logits_stride + first;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool green = static_cast<float>(words.x[i] >> 8) * 0x1p-24F < gamma[row];
    if (green && first + i < vocab) values[i] = __fadd_rn(values[i], delta[row]);
  }
}

__global__ void count_sampled_kernel(const std::int64_t* tokens, const std::int32_t* count_slot, std::int64_t rows,
                                     std::int32_t* token_counts, std::int64_t vocab) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows || count_slot[row] < 0 || tokens[row] < 0) return;
  atomicAdd(token_counts + count_slot[row] * vocab + tokens[row], 1);
}

__global__ void take_sampled_kernel(const std::int64_t* sampled, const std::int32_t* source_rows, std::int64_t rows,
                                    std::int64_t* ids) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows || source_rows[row] < 0) return;
  const std::int64_t token = sampled[source_rows[row]];
  ids[row] = token < 0 ? 0 : token;
}

__global__ void count_history_kernel(const std::int64_t* history, std::int64_t length, std::int64_t prompt_length,
                                     std::int32_t* counts, std::int64_t vocab) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= length || history[i] >= vocab) return;  // past vocab: never sampled, so nothing to penalise
  if (i < prompt_length) {
    atomicOr(counts + history[i], kSeenInPrompt);
  } else {
    atomicAdd(counts + history[i], 1);
  }
}

// The largest power of two with which `vocab` weights of 1 add up to less than 2^63.
double unit_scale_of(std::int64_t vocab) {
  return std::ldexp(1.0, 63 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocab))));
}

SampleArgs args_of(const SamplingInput& in, const SamplingOutput& out) {
  return {.logits = in.logits.data<float>(),
          .logits_stride = in.logits.row_stride(),
          .vocab = in.vocab,
          .greedy = in.greedy.data<std::uint8_t>(),
          .temperature = in.temperature.data<float>(),
          .top_p = in.top_p.data<float>(),
          .typical_p = in.typical_p.data<float>(),
          .min_p = in.min_p.data<float>(),
          .repetition_penalty = in.repetition_penalty.data<float>(),
          .frequency_penalty = in.frequency_penalty.data<float>(),
          .presence_penalty = in.presence_penalty.data<float>(),
          .top_k = in.top_k.data<std::int32_t>(),
          .position = in.position.data<std::int32_t>(),
          .count_slot = in.count_slot.data<std::int32_t>(),
          .mask_slot = in.mask_slot.data<std::int32_t>(),
          .seed = in.seed.data<std::int64_t>(),
          .token_counts = in.token_counts.defined() ? in.token_counts.data<std::int32_t>() : nullptr,
          .mask = in.mask.defined() ? in.mask.data<std::int32_t>() : nullptr,
          .unit_scale = unit_scale_of(in.vocab),
          .leave_kept = in.leave_kept,
          .token = out.token.data<std::int64_t>(),
          .logprob = out.logprob.data<float>()};
}

}  // namespace

void CudaBackend::sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const {
  const std::int64_t rows = in.logits.dim(0);
  if (rows == 0) return;
  CHECK_LT(in.vocab, std::int64_t{1} << 30);  // ids are 32-bit in the kernel
  CHECK_LE(rows, 65535);                      // a grid's second dimension
  const unsigned blocks = in.vocab <= kOneBlockVocab || !has_clusters_ ? 1 : kTeamBlocks;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, static_cast<unsigned>(rows));
  config.blockDim = dim3(kTeamThreads);
  config.stream = stream_of(ctx);
  config.attrs = &cluster;
  config.numAttrs = has_clusters_ ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, sample_kernel, args_of(in, out)));
}

void CudaBackend::add_biases(Context& ctx, const Tensor& begin, const Tensor& biases, const Tensor& logits) const {
  add_biases_kernel<<<static_cast<unsigned>(logits.dim(0)), kCountThreads, 0, stream_of(ctx)>>>(
      begin.data<std::int32_t>(), reinterpret_cast<const LogitBias*>(biases.data<std::uint8_t>()), logits.data<float>(),
      logits.row_stride());
  CUDA_CHECK(cudaGetLastError());
}

void CudaBackend::add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits) const {
  const std::int64_t vocab = logits.dim(1);
  const dim3 grid(blocks_for((vocab + 3) / 4, kCountThreads), static_cast<unsigned>(logits.dim(0)));
  add_watermark_kernel<<<grid, kCountThreads, 0, stream_of(ctx)>>>(
      in.ids.data<std::int64_t>(), in.after.data<std::int64_t>(), in.gamma.data<float>(), in.delta.data<float>(),
      logits.data<float>(), logits.row_stride(), vocab);
  CUDA_CHECK(cudaGetLastError());
}

void CudaBackend::count_sampled(Context& ctx, const Tensor& tokens, const Tensor& count_slot,
                                const Tensor& token_counts) const {
  const std::int64_t rows = tokens.dim(0);
  if (rows == 0) return;
  count_sampled_kernel<<<blocks_for(rows, kCountThreads), kCountThreads, 0, stream_of(ctx)>>>(
      tokens.data<std::int64_t>(), count_slot.data<std::int32_t>(), rows, token_counts.data<std::int32_t>(),
      token_counts.dim(1));
  CUDA_CHECK(cudaGetLastError());
}

void CudaBackend::take_sampled(Context& ctx, const Tensor& sampled, const Tensor& source_rows,
                               const Tensor& ids) const {
  const std::int64_t rows = source_rows.dim(0);
  if (rows == 0) return;
  take_sampled_kernel<<<blocks_for(rows, kCountThreads), kCountThreads, 0, stream_of(ctx)>>>(
      sampled.data<std::int64_t>(), source_rows.data<std::int32_t>(), rows, ids.data<std::int64_t>());
  CUDA_CHECK(cudaGetLastError());
}

void CudaBackend::count_history(Context& ctx, const Tensor& history, std::int64_t prompt_length,
                                const Tensor& counts) const {
  const std::int64_t length = history.dim(0);
  const std::int64_t vocab = counts.dim(0);
  auto* count = counts.data<std::int32_t>();
  CUDA_CHECK(cudaMemsetAsync(count, 0, static_cast<std::size_t>(counts.num_bytes()), stream_of(ctx)));
  if (length == 0) return;
  count_history_kernel<<<blocks_for(length, kCountThreads), kCountThreads, 0, stream_of(ctx)>>>(
      history.data<std::int64_t>(), length, prompt_length, count, vocab);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
