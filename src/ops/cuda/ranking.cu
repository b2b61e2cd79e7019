// Ranking: one block a row. Each of the largest is found by a pass of its own over the row, which lies in the cache by
// then; sums are added in one fixed order, so a row's result is the same in any batch.
#include <cmath>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/logit_order.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kEveryLane = 0xffffffffU;

struct RankArgs {
  const float* logits;  // [rows, summed], rows logits_stride apart
  std::int64_t logits_stride;
  int summed, ranked;
  const std::int64_t* tokens;  // [rows]
  float *token_logit, *largest, *log_sum;
  std::int32_t* rank;
  std::int32_t* top_ids;  // [rows, num_top]
  float* top_logits;
  int num_top;
};

// reduce() of the values of all threads, in a fixed order; all threads get it.
template <typename T, typename Reduce>
__device__ T block_reduce(T value, T* of_warp, const Reduce& reduce) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = reduce(value, __shfl_xor_sync(kEveryLane, value, offset));
  }
  __syncthreads();  // the values of the call before are read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warp[threadIdx.x % kWarps];
  for (int offset = kWarps / 2; offset > 0; offset /= 2) {
    value = reduce(value, __shfl_xor_sync(kEveryLane, value, offset));
  }
  return value;
}

using Key = unsigned long long;

__device__ Key larger(Key a, Key b) { return a > b ? a : b; }

// The best key below `limit` that this thread's logits hold; 0: none.
__device__ Key best_below(const float* row, int count, Key limit) {
  Key best = 0;
  for (int id = static_cast<int>(threadIdx.x); id < count; id += kThreads) {
    const Key key = best_of(id, row[id]);
    if (key < limit && key > best) best = key;
  }
  return best;
}

__global__ void __launch_bounds__(kThreads) rank_kernel(RankArgs args) {
  __shared__ Key keys[kWarps];
  __shared__ double sums[kWarps];
  __shared__ int counts[kWarps];
  const std::int64_t row_index = blockIdx.x;
  const float* row = args.logits + row_index * args.logits_stride;
  const bool writes = threadIdx.x == 0;
  const std::int64_t token = args.tokens[row_index];
  const float token_logit = token < 0 ? NAN : row[token];

  const Key best = block_reduce(best_below(row, args.summed, ~Key{0}), keys, larger);
  const float largest = logit_of_best(best);
  double sum = 0.0;
  int num_larger = 0;
  for (int id = static_cast<int>(threadIdx.x); id < args.summed; id += kThreads) {
    sum += double{expf(row[id] - largest)};
    num_larger += id < args.ranked && row[id] > token_logit ? 1 : 0;
  }
  sum = block_reduce(sum, sums, [](double a, double b) { return a + b; });
  num_larger = block_reduce(num_larger, counts, [](int a, int b) { return a + b; });
  if (writes) {
    args.largest[row_index] = largest;
    args.log_sum[row_index] = static_cast<float>(log(sum));
    args.token_logit[row_index] = token_logit;
    args.rank[row_index] = token < 0 ? 0 : 1 + num_larger;
  }
  Key last = ~Key{0};
  for (int i = 0; i < args.num_top; ++i) {
    if (last > 0) last = block_reduce(best_below(row, args.ranked, last), keys, larger);
    if (!writes) continue;
    args.top_ids[row_index * args.num_top + i] = last > 0 ? static_cast<std::int32_t>(id_of_best(last)) : -1;
    args.top_logits[row_index * args.num_top + i] = last > 0 ? logit_of_best(last) : -INFINITY;
  }
}

}  // namespace

void CudaBackend::rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                              const RankingOutput& out) const {
  CHECK_LT(columns.summed, std::int64_t{1} << 30);  // ids are 32-bit in the kernel
  const RankArgs args{.logits = logits.data<float>(),
                      .logits_stride = logits.row_stride(),
                      .summed = static_cast<int>(columns.summed),
                      .ranked = static_cast<int>(columns.ranked),
                      .tokens = tokens.data<std::int64_t>(),
                      .token_logit = out.token_logit.data<float>(),
                      .largest = out.largest.data<float>(),
                      .log_sum = out.log_sum.data<float>(),
                      .rank = out.rank.data<std::int32_t>(),
                      .top_ids = out.top_ids.data<std::int32_t>(),
                      .top_logits = out.top_logits.data<float>(),
                      .num_top = static_cast<int>(out.top_ids.dim(1))};
  rank_kernel<<<static_cast<unsigned>(logits.dim(0)), kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
