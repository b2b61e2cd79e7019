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
constexpr int kWarps = 4;
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

// Dot products of one row of A with up to kTokensTogether rows of x; a warp takes a part of the inputs.
template <typename T, typename A>
__device__ void dot_rows(const LoraArgs& args, const A* a, const std::int32_t* rows, int count,
                         float (&sums)[kTokensTogether]) {
  const T* x = static_cast<const T*>(args.x);
  if (args.inner % 8 == 0 && args.x_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0) {
    for (std::int64_t k = static_cast<std::int64_t>(threadIdx.x) * 8; k < args.inner; k += kThreads * 8) {
      const Eight weights = load_eight(a + k);
#pragma unroll
      for (int t = 0; t < kTokensTogether; ++t) {
        if (t >= count) break;
        const Eight values = load_eight(x + rows[t] * args.x_stride + k);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t] = fmaf(weights.v[i], values.v[i], sums[t]);
      }
    }
    return;
  }
  for (std::int64_t k = threadIdx.x; k < args.inner; k += kThreads) {
    const float weight = to_float(a[k]);
#pragma unroll
    for (int t = 0; t < kTokensTogether; ++t) {
      if (t < count) sums[t] = fmaf(weight, to_float(x[rows[t] * args.x_stride + k]), sums[t]);
    }
  }
}

// Block: x = rank index, y = group and part, z = which kTokensTogether tokens of the group.
template <typename T>
__global__ void __launch_bounds__(kThreads) shrink_kernel(LoraArgs args) {
  __shared__ float shared[kWarps][kTokensTogether];
  const LoraGroupRef group = args.groups[blockIdx.y / args.num_parts];
  const int part = static_cast<int>(blockIdx.y) % args.num_parts;
  const int r = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.z) * kTokensTogether;
  if (first >= group.token_count) return;  // a group that only pads the table has no tokens, and no pairs
  const LoraPairRef pair = group.pairs[args.target_ids[part]];
  if (r >= pair.rank) return;
  const int count = min(kTokensTogether, group.token_count - first);
  const std::int32_t* rows = args.token_rows + group.token_begin + first;
  float sums[kTokensTogether] = {};
  const std::int64_t offset = r * args.inner;
  if (pair.dtype == static_cast<std::int32_t>(DType::kBFloat16)) {
    dot_rows<T>(args, static_cast<const __nv_bfloat16*>(pair.a) + offset, rows, count, sums);
  } else if (pair.dtype == static_cast<std::int32_t>(DType::kFloat16)) {
    dot_rows<T>(args, static_cast<const __half*>(pair.a) + offset, rows, count, sums);
  } else {
    dot_rows<T>(args, static_cast<const float*>(pair.a) + offset, rows, count, sums);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int t = 0; t < kTokensTogether; ++t) {
    const float sum = warp_sum(sums[t]);
    if (threadIdx.x % kWarp == 0) shared[warp][t] = sum;
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  if (t >= count) return;
  float sum = 0.0F;
  for (int w = 0; w < kWarps; ++w) sum += shared[w][t];
  const std::int64_t token = group.token_begin + first + t;
  args.shrunk[(token * args.num_parts + part) * args.max_rank + r] = sum * pair.scale;
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
  const std::int64_t columns = args.column_count[part];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads + threadIdx.x) * kColumnsEach;
  if (static_cast<std::int64_t>(blockIdx.x) * kExpandThreads * kColumnsEach >= columns) return;
  const int count = min(kTokensTogether, group.token_count - first);
  for (int i = static_cast<int>(threadIdx.x); i < count * pair.rank; i += kExpandThreads) {
    const std::int64_t token = group.token_begin + first + i / pair.rank;
    shrunk[i] = args.shrunk[(token * args.num_parts + part) * args.max_rank + i % pair.rank];
  }
  __syncthreads();
  if (column >= columns) return;
  float sums[kTokensTogether][kColumnsEach] = {};
  const bool whole = columns % kColumnsEach == 0;  // then a group of columns is aligned too
  const bool is_16_bit = pair.dtype != static_cast<std::int32_t>(DType::kFloat32);
#pragma unroll 4
  for (int r = 0; r < pair.rank; ++r) {
    float b[kColumnsEach];
    const std::int64_t at = r * columns + column;
    if (whole && is_16_bit) {
      const auto bits =
          *reinterpret_cast<const Pack<std::uint16_t, kColumnsEach>*>(static_cast<const std::uint16_t*>(pair.b) + at);
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) b[c] = load_float(&bits.v[c], pair.dtype, 0);
    } else {
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c)
        b[c] = column + c < columns ? load_float(pair.b, pair.dtype, at + c) : 0.0F;
    }
#pragma unroll
    for (int t = 0; t < kTokensTogether; ++t) {
      if (t >= count) break;
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) sums[t][c] = fmaf(shrunk[t * pair.rank + r], b[c], sums[t][c]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokensTogether; ++t) {
    if (t >= count) break;
    const std::int64_t row = args.token_rows[group.token_begin + first + t];
    Out* out = static_cast<Out*>(args.out) + row * args.out_stride + args.column_begin[part] + column;
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) {
      if (column + c < columns) out[c] = from_float<Out>(to_float(out[c]) + sums[t][c]);
    }
  }
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
