// The attention kernel for everything: a block for each query token and head, keys 128 at a time with an online
// softmax.
#include "core/block_size.h"
#include "ops/cuda/attention_args.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128;

// The sequence that holds this token.
__device__ int sequence_of(const AttentionArgs& args, int token) {
  int low = 0;
  int high = args.num_sequences;  // cu_query[low] <= token < cu_query[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (args.cu_query[middle] <= token ? low : high) = middle;
  }
  return low;
}

__device__ float block_max(float value, float* shared) {
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) value = fmaxf(value, shared[i]);
  return value;
}

// Shared memory: query and sums [head_dim] each, then the weights of 128 keys.
template <typename T, typename C>
__global__ void plain_attention_kernel(AttentionArgs args) {
  extern __shared__ float memory[];
  __shared__ float shared[kWarp];
  float* query = memory;
  float* sums = memory + args.head_dim;
  float* weights = sums + args.head_dim;
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int sequence = sequence_of(args, token);
  const int position = args.cached[sequence] + token - args.cu_query[sequence];
  const int first = args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
  const std::int32_t* table = args.block_tables + sequence * args.table_stride;
  const float slope = args.alibi_slopes != nullptr ? args.alibi_slopes[head] : 0.0F;
  const auto offset_of = [&](int key) {
    const std::int64_t slot = static_cast<std::int64_t>(table[key / kBlockSize]) * kBlockSize + key % kBlockSize;
    return (slot * args.kv_heads + head / args.group) * args.head_dim;
  };

  const std::int64_t source = token * args.query_stride + head * args.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) {
    query[i] = args.float_query ? static_cast<const float*>(args.query)[source + i]
                                : to_float(static_cast<const T*>(args.query)[source + i]);
    sums[i] = 0.0F;
  }
  __syncthreads();
  float largest = -INFINITY;
  float total = 0.0F;
  for (int begin = first; begin <= position; begin += kThreads) {
    const int key = begin + static_cast<int>(threadIdx.x);
    float score = -INFINITY;
    if (key <= position) {
      const C* keys = static_cast<const C*>(args.key_cache) + offset_of(key);
      float dot = 0.0F;
      for (int i = 0; i < args.head_dim; ++i) dot += query[i] * to_float(keys[i]);
      score = (dot + slope * static_cast<float>(key)) * args.scale;
    }
    const float new_largest = fmaxf(largest, block_max(score, shared));
    // A NaN score is no -inf and not the largest either: it must reach the sums.
    const float weight = key <= position ? expf(score - new_largest) : 0.0F;
    weights[threadIdx.x] = weight;
    const float shrink = expf(largest - new_largest);
    total = total * shrink + block_sum(weight, shared);
    largest = new_largest;
    __syncthreads();
    const int count = min(kThreads, position + 1 - begin);
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) {
      float sum = sums[i] * shrink;
      for (int j = 0; j < count; ++j) {
        sum += weights[j] * to_float(static_cast<const C*>(args.value_cache)[offset_of(begin + j) + i]);
      }
      sums[i] = sum;
    }
    __syncthreads();
  }
  T* out = static_cast<T*>(args.out) + token * args.out_stride + head * args.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kThreads) out[i] = from_float<T>(sums[i] / total);
}

}  // namespace

void launch_plain_attention(const AttentionArgs& args, DType activations, DType cache, std::int64_t num_tokens,
                            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(args.heads));
  const std::size_t bytes = (2 * static_cast<std::size_t>(args.head_dim) + kThreads) * sizeof(float);
  with_float_type(activations, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_float_type(cache, [&](auto cache_tag) {
      plain_attention_kernel<T, typename decltype(cache_tag)::Type><<<grid, kThreads, bytes, stream>>>(args);
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
