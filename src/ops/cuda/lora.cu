// LoRA deltas of mixed adapters: a shrink (x A^T) into float scratch [adapter tokens, parts, rank], then an expand onto
// the parts' columns. Blocks find their adapter in the step's group table, so the launches are the same for one adapter
// and for many, and each pair works at its own rank.
#include <algorithm>
#include <array>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/lora_launch.h"

namespace shoal::cuda {
namespace {

constexpr int kMostInputs = 2;     // that layers joined along their inputs have
constexpr int kMostParts = 6;      // q, k, v, gate and up of a parallel block are five
constexpr int kWarps = 16;         // of a shrink block
constexpr int kInputsEach = 1024;  // of a warp, about: four loads of 16 bytes a lane, all under way at once
constexpr int kThreads = kWarps * kWarp;
constexpr int kShrinkTokens = 8;  // of a group that one block takes: as many as registers hold
constexpr int kExpandTokens = 4;
static_assert(kShrinkTokens % kLoraTokenStep == 0 && kExpandTokens % kLoraTokenStep == 0);
constexpr int kColumnsEach = 4;  // of a thread in expand
constexpr int kExpandThreads = 128;
constexpr int kExpandBlocks = 4;  // of a multiprocessor: 128 registers a thread
constexpr int kRanksAhead = 16;   // rows of B that are on their way before the shrunk numbers are there

struct LoraArgs {
  const void* x;
  void* out;
  const LoraGroupRef* groups;
  const std::int32_t* token_rows;
  float* shrunk;  // [adapter tokens, parts, max_rank]
  std::int64_t x_stride, out_stride, inner;
  int max_rank, num_parts;
  int warps_each;  // that share the inputs of one row of A; a power of two up to kWarps, by `inner` alone
  std::int32_t target_ids[kMostParts];
  std::int64_t column_begin[kMostParts];
  std::int64_t column_count[kMostParts];
};

__device__ inline float load_float(const void* data, std::int32_t dtype, std::int64_t index) {
  if (dtype == static_cast<std::int32_t>(DType::kBFloat16))
    return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
  if (dtype == static_cast<std::int32_t>(DType::kFloat16)) return to_float(static_cast<const __half*>(data)[index]);
  return static_cast<const float*>(data)[index];
}

// Eight neighbours, one load where they are 16-bit and aligned.
struct Eight {
  float v[8];
};
template <typename T>
__device__ inline Eight load_eight(const T* data) {
  Eight result;
  if constexpr (sizeof(T) == 2) {
    const Pack<T, 8> pack = *reinterpret_cast<const Pack<T, 8>*>(data);
#pragma unroll
    for (int i = 0; i < 8; ++i) result.v[i] = to_float(pack.v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) result.v[i] = to_float(data[i]);
  }
  return result;
}

// The tokens of a group that one block takes, as a constant: loops over them unroll, and all loads go out together.
// Beyond `count` the last one stands in, and its results are dropped.
template <int kTokens>
struct Tokens {
  int count;
  std::int64_t rows[kTokens];

  __device__ Tokens(const LoraArgs& args, const LoraGroupRef& group, int first)
      : count(min(kTokens, group.token_count - first)) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) rows[t] = args.token_rows[group.token_begin + first + min(t, count - 1)];
  }
};

// f(constant) with the smallest power of two up to kMost that holds `count` tokens.
template <int kMost, typename F>
__device__ inline void with_tokens(int count, const F& f) {
  if (count <= 1) return f(std::integral_constant<int, 1>{});
  if (count <= 2) return f(std::integral_constant<int, 2>{});
  if (kMost == 4 || count <= 4) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, kMost>{});
}

// Dot products of one row of A with rows of x: this lane's share, of the `share`-th of args.warps_each warps.
template <typename T, typename A, int kTokens>
__device__ void dot_rows(const LoraArgs& args, const A* a, int share, const Tokens<kTokens>& tokens,
                         float (&sums)[kTokens]) {
  const T* x = static_cast<const T*>(args.x);
  const std::int64_t lane = share * kWarp + static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t lanes = std::int64_t{args.warps_each} * kWarp;
  if (args.inner % 8 == 0 && args.x_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0) {
    constexpr int kAhead = kTokens <= 2 ? 4 : 2;  // what registers hold
#pragma unroll kAhead
    for (std::int64_t k = lane * 8; k < args.inner; k += lanes * 8) {
      const Eight weights = load_eight(a + k);
      Eight values[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) values[t] = load_eight(x + tokens.rows[t] * args.x_stride + k);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t] = fmaf(weights.v[i], values[t].v[i], sums[t]);
      }
    }
    return;
  }
  for (std::int64_t k = lane; k < args.inner; k += lanes) {
    const float weight = to_float(a[k]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] = fmaf(weight, to_float(x[tokens.rows[t] * args.x_stride + k]), sums[t]);
  }
}

template <typename T, int kTokens>
__device__ void shrink_tokens(const LoraArgs& args, const LoraGroupRef& group, const LoraPairRef& pair, int part,
                              int first, float (*shared)[kShrinkTokens]) {
  const Tokens<kTokens> tokens(args, group, first);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int ranks_each = kWarps / args.warps_each;  // of a block
  const int first_rank = static_cast<int>(blockIdx.x) * ranks_each;
  const int r = first_rank + warp / args.warps_each;
  const int share = warp % args.warps_each;
  float sums[kTokens] = {};
  if (r < pair.rank) {
    const std::int64_t offset = r * args.inner;
    if (pair.dtype == static_cast<std::int32_t>(DType::kBFloat16)) {
      dot_rows<T>(args, static_cast<const __nv_bfloat16*>(pair.a) + offset, share, tokens, sums);
    } else if (pair.dtype == static_cast<std::int32_t>(DType::kFloat16)) {
      dot_rows<T>(args, static_cast<const __half*>(pair.a) + offset, share, tokens, sums);
    } else {
      dot_rows<T>(args, static_cast<const float*>(pair.a) + offset, share, tokens, sums);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = warp_sum(sums[t]);
    if (threadIdx.x % kWarp == 0) shared[warp][t] = sum;
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x) % kTokens;
  const int own = static_cast<int>(threadIdx.x) / kTokens;  // a thread adds up one rank of one token
  if (own >= ranks_each || first_rank + own >= pair.rank || t >= tokens.count) return;
  float sum = 0.0F;
  for (int w = 0; w < args.warps_each; ++w) sum += shared[own * args.warps_each + w][t];
  const std::int64_t token = group.token_begin + first + t;
  args.shrunk[(token * args.num_parts + part) * args.max_rank + first_rank + own] = sum * pair.scale;
}

// Block: x = ranks, y = group and part, z = which kShrinkTokens tokens of the group.
template <typename T>
__global__ void __launch_bounds__(kThreads) shrink_kernel(LoraArgs args) {
  __shared__ float shared[kWarps][kShrinkTokens];
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int first = static_cast<int>(blockIdx.z) * kShrinkTokens;
  if (first >= group.token_count) return;  // a group that only pads the table has no tokens, and no pairs
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (static_cast<int>(blockIdx.x) * (kWarps / args.warps_each) >= pair.rank) return;
  with_tokens<kShrinkTokens>(group.token_count - first, [&](auto tokens) {
    shrink_tokens<T, decltype(tokens)::value>(args, group, pair, part, first, shared);
  });
}

using FourBits = Pack<std::uint16_t, kColumnsEach>;

__device__ inline FourBits load_bits(const LoraPairRef& pair, std::int64_t at) {
  return *reinterpret_cast<const FourBits*>(static_cast<const std::uint16_t*>(pair.b) + at);
}

__device__ inline float bits_to_float(std::uint16_t bits, bool bfloat16) {
  return bfloat16 ? __uint_as_float(static_cast<std::uint32_t>(bits) << 16) : __half2float(__ushort_as_half(bits));
}

// Four neighbours of a row of B.
__device__ inline void load_columns(const LoraPairRef& pair, std::int64_t at, std::int64_t left, bool whole,
                                    float (&b)[kColumnsEach]) {
  if (whole && pair.dtype != static_cast<std::int32_t>(DType::kFloat32)) {
    const FourBits bits = load_bits(pair, at);
    const bool bfloat16 = pair.dtype == static_cast<std::int32_t>(DType::kBFloat16);
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) b[c] = bits_to_float(bits.v[c], bfloat16);
  } else {
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) b[c] = c < left ? load_float(pair.b, pair.dtype, at + c) : 0.0F;
  }
}

template <typename Out, int kTokens>
__device__ void expand_tokens(const LoraArgs& args, const LoraGroupRef& group, const LoraPairRef& pair, int part,
                              int first, float* shrunk) {
  const Tokens<kTokens> tokens(args, group, first);
  const std::int64_t columns = args.column_count[part];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads + threadIdx.x) * kColumnsEach;
  Out* out = static_cast<Out*>(args.out) + args.column_begin[part] + column;
  const bool whole = columns % kColumnsEach == 0;  // then a group of columns of B is aligned too
  const bool aligned = whole && column < columns &&
                       reinterpret_cast<std::uintptr_t>(out) % (sizeof(Out) * kColumnsEach) == 0 &&
                       args.out_stride % kColumnsEach == 0;
  // On their way while the block waits for the others' numbers.
  Pack<Out, kColumnsEach> before[kTokens];
  if (aligned) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      before[t] = *reinterpret_cast<const Pack<Out, kColumnsEach>*>(out + tokens.rows[t] * args.out_stride);
    }
  }
  const bool packed = whole && pair.dtype != static_cast<std::int32_t>(DType::kFloat32);
  const bool bfloat16 = pair.dtype == static_cast<std::int32_t>(DType::kBFloat16);
  const int num_ahead = packed && column < columns ? min(pair.rank, kRanksAhead) : 0;
  FourBits ahead[kRanksAhead];
#pragma unroll
  for (int r = 0; r < kRanksAhead; ++r) {
    if (r < num_ahead) ahead[r] = load_bits(pair, r * columns + column);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * pair.rank; i += kExpandThreads) {
    const std::int64_t token = group.token_begin + first + min(i / pair.rank, tokens.count - 1);
    shrunk[i] = args.shrunk[(token * args.num_parts + part) * args.max_rank + i % pair.rank];
  }
  __syncthreads();
  if (column >= columns) return;
  float sums[kTokens][kColumnsEach] = {};
  const auto add_rank = [&](int r, const float(&b)[kColumnsEach]) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) sums[t][c] = fmaf(shrunk[t * pair.rank + r], b[c], sums[t][c]);
    }
  };
#pragma unroll
  for (int r = 0; r < kRanksAhead; ++r) {
    if (r < num_ahead) {
      float b[kColumnsEach];
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) b[c] = bits_to_float(ahead[r].v[c], bfloat16);
      add_rank(r, b);
    }
  }
#pragma unroll 8
  for (int r = num_ahead; r < pair.rank; ++r) {
    float b[kColumnsEach];
    load_columns(pair, r * columns + column, columns - column, whole, b);
    add_rank(r, b);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= tokens.count) break;
    Out* row = out + tokens.rows[t] * args.out_stride;
    if (aligned) {
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) before[t].v[c] = from_float<Out>(to_float(before[t].v[c]) + sums[t][c]);
      *reinterpret_cast<Pack<Out, kColumnsEach>*>(row) = before[t];
    } else {
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) {
        if (column + c < columns) row[c] = from_float<Out>(to_float(row[c]) + sums[t][c]);
      }
    }
  }
}

// Block: x = columns, y = group and part, z = tokens as above. B is [rank, columns]: neighbouring threads read
// neighbouring columns.
template <typename Out>
__global__ void __launch_bounds__(kExpandThreads, kExpandBlocks) expand_kernel(LoraArgs args) {
  extern __shared__ float shrunk[];  // [kExpandTokens, rank]
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int first = static_cast<int>(blockIdx.z) * kExpandTokens;
  if (first >= group.token_count) return;
  if (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads * kColumnsEach >= args.column_count[part]) return;
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (pair.rank == 0) return;
  with_tokens<kExpandTokens>(group.token_count - first, [&](auto tokens) {
    expand_tokens<Out, decltype(tokens)::value>(args, group, pair, part, first, shrunk);
  });
}

// A power of two of warps, about kInputsEach inputs for each.
int warps_for(std::int64_t inner) {
  int warps = 1;
  while (warps < kWarps && std::int64_t{2} * warps * kInputsEach <= inner) warps *= 2;
  return warps;
}

// How one input of a layer is launched.
struct LoraLaunch {
  LoraArgs args{};
  unsigned rank_blocks = 0, column_blocks = 0, pairs = 0, shrink_token_blocks = 0, expand_token_blocks = 0;
  std::size_t expand_shared_bytes = 0;
};

LoraLaunch plan_launch(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                       const Tensor& out) {
  CHECK_LE(std::ssize(parts), std::int64_t{kMostParts});
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  LoraLaunch launch;
  LoraArgs& args = launch.args;
  args.x = x.raw();
  args.out = out.raw();
  args.groups = static_cast<const LoraGroupRef*>(batch.group_refs.raw());
  args.token_rows = batch.token_rows.data<std::int32_t>();
  args.shrunk = ctx.arena.take(DType::kFloat32, {x.dim(0), num_parts, batch.max_rank}).data<float>();
  args.x_stride = x.row_stride();
  args.out_stride = out.row_stride();
  args.inner = x.dim(1);
  args.max_rank = static_cast<int>(batch.max_rank);
  args.num_parts = static_cast<int>(num_parts);
  args.warps_each = warps_for(args.inner);
  std::int64_t widest = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    args.target_ids[i] = parts[i].target_id;
    args.column_begin[i] = parts[i].column_begin;
    args.column_count[i] = parts[i].column_count;
    widest = std::max(widest, parts[i].column_count);
  }
  std::int64_t largest_group = 0;
  for (const LoraGroup& group : batch.groups) largest_group = std::max(largest_group, group.token_count);
  const std::int64_t num_groups = batch.group_refs.dim(0) / static_cast<std::int64_t>(sizeof(LoraGroupRef));
  launch.rank_blocks = blocks_for(batch.max_rank, kWarps / args.warps_each);
  launch.pairs = static_cast<unsigned>(num_groups * num_parts);
  launch.shrink_token_blocks = blocks_for(largest_group, kShrinkTokens);
  launch.expand_token_blocks = blocks_for(largest_group, kExpandTokens);
  launch.column_blocks = blocks_for(widest, kExpandThreads * kColumnsEach);
  launch.expand_shared_bytes = static_cast<std::size_t>(kExpandTokens * batch.max_rank) * sizeof(float);
  return launch;
}

void launch_shrink(const LoraLaunch& launch, DType dtype, cudaStream_t stream) {
  const dim3 grid(launch.rank_blocks, launch.pairs, launch.shrink_token_blocks);
  with_float_type(dtype, [&](auto tag) {
    shrink_kernel<typename decltype(tag)::Type><<<grid, kThreads, 0, stream>>>(launch.args);
  });
  CUDA_CHECK(cudaGetLastError());
}

void launch_expand(const LoraLaunch& launch, DType dtype, cudaStream_t stream) {
  const dim3 grid(launch.column_blocks, launch.pairs, launch.expand_token_blocks);
  with_float_type(dtype, [&](auto tag) {
    expand_kernel<typename decltype(tag)::Type>
        <<<grid, kExpandThreads, launch.expand_shared_bytes, stream>>>(launch.args);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void CudaBackend::lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                           const Tensor& out) const {
  const Arena::Scope scope(ctx.arena);
  const LoraLaunch launch = plan_launch(ctx, x, batch, parts, out);
  launch_shrink(launch, x.dtype(), stream_of(ctx));
  launch_expand(launch, out.dtype(), stream_of(ctx));
}

// Shrinks need x alone: they run on the side stream while the product reads the weight. In a captured step both
// waits become edges of the graph.
bool CudaBackend::linear(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                         const LoraBatch& batch, std::span<const LoraInput> inputs, const Tensor& out) const {
  CHECK_LE(inputs.size(), std::size_t{kMostInputs});
  const Arena::Scope scope(ctx.arena);
  const cudaStream_t stream = stream_of(ctx);
  CUDA_CHECK(cudaEventRecord(side_begin_, stream));
  CUDA_CHECK(cudaStreamWaitEvent(side_stream_, side_begin_, 0));
  std::array<LoraLaunch, kMostInputs> launches;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    launches[i] = plan_launch(ctx, x.columns(inputs[i].begin, inputs[i].count), batch, inputs[i].parts, out);
    launch_shrink(launches[i], x.dtype(), side_stream_);
  }
  CUDA_CHECK(cudaEventRecord(side_end_, side_stream_));
  matmul(ctx, x, weight, bias, mode, out);
  CUDA_CHECK(cudaStreamWaitEvent(stream, side_end_, 0));
  for (std::size_t i = 0; i < inputs.size(); ++i) launch_expand(launches[i], out.dtype(), stream);
  return true;
}

}  // namespace shoal::cuda
