// LoRA deltas of mixed adapters: a shrink (x A^T) into float scratch [adapter tokens, parts, rank], then an expand onto
// the parts' columns. Blocks find their adapter in the step's group table, so the launches are the same for one adapter
// and for many, and each pair works at its own rank.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kMostParts = 6;  // q, k, v, gate and up of a parallel block are five
constexpr int kWarps = 16;     // along the inputs: an MLP has tens of thousands
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

// Dot products of one row of A with rows of x, this thread's share.
template <typename T, typename A, int kTokens>
__device__ void dot_rows(const LoraArgs& args, const A* a, const Tokens<kTokens>& tokens, float (&sums)[kTokens]) {
  const T* x = static_cast<const T*>(args.x);
  if (args.inner % 8 == 0 && args.x_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0) {
#pragma unroll 2
    for (std::int64_t k = static_cast<std::int64_t>(threadIdx.x) * 8; k < args.inner; k += kThreads * 8) {
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
  for (std::int64_t k = threadIdx.x; k < args.inner; k += kThreads) {
    const float weight = to_float(a[k]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] = fmaf(weight, to_float(x[tokens.rows[t] * args.x_stride + k]), sums[t]);
  }
}

template <typename T, int kTokens>
__device__ void shrink_tokens(const LoraArgs& args, const LoraGroupRef& group, const LoraPairRef& pair, int part,
                              int first, float (*shared)[kTokensTogether]) {
  const Tokens<kTokens> tokens(args, group, first);
  const int r = static_cast<int>(blockIdx.x);
  const std::int64_t offset = r * args.inner;
  float sums[kTokens] = {};
  if (pair.dtype == static_cast<std::int32_t>(DType::kBFloat16)) {
    dot_rows<T>(args, static_cast<const __nv_bfloat16*>(pair.a) + offset, tokens, sums);
  } else if (pair.dtype == static_cast<std::int32_t>(DType::kFloat16)) {
    dot_rows<T>(args, static_cast<const __half*>(pair.a) + offset, tokens, sums);
  } else {
    dot_rows<T>(args, static_cast<const float*>(pair.a) + offset, tokens, sums);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = warp_sum(sums[t]);
    if (lane == 0) shared[warp][t] = sum;
  }
  __syncthreads();
  if (warp >= tokens.count) return;  // a warp adds up one token
  const float sum = warp_sum(lane < kWarps ? shared[lane][warp] : 0.0F);
  const std::int64_t token = group.token_begin + first + warp;
  if (lane == 0) args.shrunk[(token * args.num_parts + part) * args.max_rank + r] = sum * pair.scale;
}

// Block: x = rank index, y = group and part, z = which kTokensTogether tokens of the group.
template <typename T>
__global__ void __launch_bounds__(kThreads) shrink_kernel(LoraArgs args) {
  __shared__ float shared[kWarps][kTokensTogether];
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int first = static_cast<int>(blockIdx.z) * kTokensTogether;
  if (first >= group.token_count) return;  // a group that only pads the table has no tokens, and no pairs
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (static_cast<int>(blockIdx.x) >= pair.rank) return;
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
                              int first, const float* shrunk) {
  const std::int64_t columns = args.column_count[part];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads + threadIdx.x) * kColumnsEach;
  if (column >= columns) return;
  const Tokens<kTokens> tokens(args, group, first);
  Out* out = static_cast<Out*>(args.out) + args.column_begin[part] + column;
  const bool whole = columns % kColumnsEach == 0;  // then a group of columns of B is aligned too
  const bool aligned = whole && reinterpret_cast<std::uintptr_t>(out) % (sizeof(Out) * kColumnsEach) == 0 &&
                       args.out_stride % kColumnsEach == 0;
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
  if (aligned) {
    Pack<Out, kColumnsEach> before[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      before[t] = *reinterpret_cast<const Pack<Out, kColumnsEach>*>(out + tokens.rows[t] * args.out_stride);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= tokens.count) break;
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) before[t].v[c] = from_float<Out>(to_float(before[t].v[c]) + sums[t][c]);
      *reinterpret_cast<Pack<Out, kColumnsEach>*>(out + tokens.rows[t] * args.out_stride) = before[t];
    }
    return;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= tokens.count) break;
    Out* row = out + tokens.rows[t] * args.out_stride;
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) {
      if (column + c < columns) row[c] = from_float<Out>(to_float(row[c]) + sums[t][c]);
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
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (pair.rank == 0) return;
  if (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads * kColumnsEach >= args.column_count[part]) return;
  const int count = min(kTokensTogether, group.token_count - first);
  for (int i = static_cast<int>(threadIdx.x); i < kTokensTogether * pair.rank; i += kExpandThreads) {
    const std::int64_t token = group.token_begin + first + i / pair.rank;
    shrunk[i] =
        i < count * pair.rank ? args.shrunk[(token * args.num_parts + part) * args.max_rank + i % pair.rank] : 0.0F;
  }
  __syncthreads();
  with_tokens(
      count, [&](auto tokens) { expand_tokens<Out, decltype(tokens)::value>(args, group, pair, part, first, shrunk); });
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
        <<<dim3(static_cast<unsigned>(batch.max_rank), pairs, tokens), kThreads, 0, stream>>>(args);
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
