// LoRA deltas of mixed adapters: a shrink (x A^T) into float scratch [adapter tokens, parts, rank], then an expand onto
// the parts' columns. Blocks find their adapter in the step's group table, so the launches are the same for one adapter
// and for many, and each pair works at its own rank.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kMostParts = 6;      // q, k, v, gate and up of a parallel block are five
constexpr int kWarps = 16;         // of a shrink block
constexpr int kInputsEach = 1024;  // of a warp, about: four loads of 16 bytes a lane, all under way at once
constexpr int kThreads = kWarps * kWarp;
constexpr int kTokensTogether = 8;  // of a group that one block takes
constexpr int kColumnsEach = 4;     // of a thread in expand
constexpr int kExpandThreads = 128;

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

// f(constant) with the smallest of 1, 2, 4, 8 that holds `count` tokens.
template <typename F>
__device__ inline void with_tokens(int count, const F& f) {
  if (count <= 1) return f(std::integral_constant<int, 1>{});
  if (count <= 2) return f(std::integral_constant<int, 2>{});
  if (count <= 4) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, kTokensTogether>{});
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
                              int first, float (*shared)[kTokensTogether]) {
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

// Block: x = ranks, y = group and part, z = which kTokensTogether tokens of the group.
template <typename T>
__global__ void __launch_bounds__(kThreads) shrink_kernel(LoraArgs args) {
  __shared__ float shared[kWarps][kTokensTogether];
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int first = static_cast<int>(blockIdx.z) * kTokensTogether;
  if (first >= group.token_count) return;  // a group that only pads the table has no tokens, and no pairs
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (static_cast<int>(blockIdx.x) * (kWarps / args.warps_each) >= pair.rank) return;
  with_tokens(group.token_count - first,
              [&](auto tokens) { shrink_tokens<T, decltype(tokens)::value>(args, group, pair, part, first, shared); });
}

// Four neighbours of a row of B.
__device__ inline void load_columns(const LoraPairRef& pair, std::int64_t at, std::int64_t left, bool whole,
                                    float (&b)[kColumnsEach]) {
  if (whole && pair.dtype != static_cast<std::int32_t>(DType::kFloat32)) {
    const auto bits =
        *reinterpret_cast<const Pack<std::uint16_t, kColumnsEach>*>(static_cast<const std::uint16_t*>(pair.b) + at);
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) b[c] = load_float(&bits.v[c], pair.dtype, 0);
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
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * pair.rank; i += kExpandThreads) {
    const std::int64_t token = group.token_begin + first + min(i / pair.rank, tokens.count - 1);
    shrunk[i] = args.shrunk[(token * args.num_parts + part) * args.max_rank + i % pair.rank];
  }
  __syncthreads();
  if (column >= columns) return;
  float sums[kTokens][kColumnsEach] = {};
#pragma unroll 8
  for (int r = 0; r < pair.rank; ++r) {
    float b[kColumnsEach];
    load_columns(pair, r * columns + column, columns - column, whole, b);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) sums[t][c] = fmaf(shrunk[t * pair.rank + r], b[c], sums[t][c]);
    }
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
__global__ void __launch_bounds__(kExpandThreads) expand_kernel(LoraArgs args) {
  extern __shared__ float shrunk[];  // [kTokensTogether, rank]
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int first = static_cast<int>(blockIdx.z) * kTokensTogether;
  if (first >= group.token_count) return;
  if (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads * kColumnsEach >= args.column_count[part]) return;
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (pair.rank == 0) return;
  with_tokens(group.token_count - first, [&](auto tokens) {
    expand_tokens<Out, decltype(tokens)::value>(args, group, pair, part, first, shrunk);
  });
}

// A power of two of warps, about kInputsEach inputs for each.
int warps_for(std::int64_t inner) {
  int warps = 1;
  while (warps < kWarps && std::int64_t{2} * warps * kInputsEach <= inner) warps *= 2;
  return warps;
}

}  // namespace

void CudaBackend::lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                           const Tensor& out) const {
  CHECK_LE(std::ssize(parts), std::int64_t{kMostParts});
  const Arena::Scope scope(ctx.arena);
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  const std::int64_t num_groups = batch.group_refs.dim(0) / static_cast<std::int64_t>(sizeof(LoraGroupRef));
  LoraArgs args{};
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
  const auto pairs = static_cast<unsigned>(num_groups * num_parts);
  const unsigned tokens = blocks_for(largest_group, kTokensTogether);
  const cudaStream_t stream = stream_of(ctx);
  with_float_type(x.dtype(), [&](auto tag) {
    shrink_kernel<typename decltype(tag)::Type>
        <<<dim3(blocks_for(batch.max_rank, kWarps / args.warps_each), pairs, tokens), kThreads, 0, stream>>>(args);
  });
  CUDA_CHECK(cudaGetLastError());
  const std::size_t shared_bytes = static_cast<std::size_t>(kTokensTogether * batch.max_rank) * sizeof(float);
  const dim3 grid(blocks_for(widest, kExpandThreads * kColumnsEach), pairs, tokens);
  with_float_type(out.dtype(), [&](auto tag) {
    expand_kernel<typename decltype(tag)::Type><<<grid, kExpandThreads, shared_bytes, stream>>>(args);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
