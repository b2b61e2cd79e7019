// What the GPU can do: the yardsticks of `shoal bench --device cuda`.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_memory.h"
#include "ops/cuda/matmul_plans.h"
#include "probe.h"

namespace shoal {
namespace {

using cuda::device_allocator;

constexpr std::int64_t kReadBytes = std::int64_t{4} << 30;
constexpr std::int64_t kSide = 8192;  // of the product's matrices
constexpr int kRuns = 8;
constexpr int kThreads = 512;
constexpr int kInFlight = 4;

// A plain wide read: 16 bytes a thread, four loads under way, nothing written but what keeps them from being dropped.
__global__ void read_kernel(const uint4* data, std::int64_t count, unsigned* sink) {
  unsigned sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kInFlight - 1) * stride < count; i += kInFlight * stride) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) loaded[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum ^= loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
  }
  if (sum == 0x5ca1ab1eU) *sink = sum;
}

// Uniform in [-1, 1): products of zeros, or of numbers with few bits, draw less power and run faster than real ones.
__global__ void fill_kernel(__nv_bfloat16* data, std::int64_t count) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    std::uint64_t bits = static_cast<std::uint64_t>(i + 1) * 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    data[i] = __float2bfloat16_rn(static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F);
  }
}

// The shortest of kRuns, in seconds.
template <typename F>
double best_seconds(cudaStream_t stream, const F& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float best_ms = 0.0F;
  for (int i = 0; i <= kRuns; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    run();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float elapsed_ms = 0.0F;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, begin, end));
    if (i == 1 || (i > 1 && elapsed_ms < best_ms)) best_ms = elapsed_ms;  // the first warms up
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(best_ms) / 1e3;
}

}  // namespace

MachineRates probe_gpu() {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MachineRates rates{.read_gb_s = 0.0, .matrix_gflop_s = 0.0, .matrix_dtype = "bfloat16"};
  int multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  {
    const Buffer data(device_allocator(), kReadBytes);
    const Buffer sink(device_allocator(), 4);
    fill_kernel<<<1024, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(data.raw()), kReadBytes / 2);
    for (const int blocks_each : {2, 4, 8}) {
      const double seconds = best_seconds(stream, [&] {
        read_kernel<<<static_cast<unsigned>(multiprocessors * blocks_each), kThreads, 0, stream>>>(
            static_cast<const uint4*>(data.raw()), kReadBytes / 16, static_cast<unsigned*>(sink.raw()));
      });
      rates.read_gb_s = std::max(rates.read_gb_s, static_cast<double>(kReadBytes) / seconds / 1e9);
    }
  }
  {
    constexpr std::int64_t kMatrixBytes = kSide * kSide * 2;
    const Buffer matrices(device_allocator(), 3 * kMatrixBytes);
    auto* bytes = static_cast<std::byte*>(matrices.raw());
    fill_kernel<<<1024, kThreads, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(bytes), 2 * kSide * kSide);
    cuda::MatmulPlans plans;
    const cuda::MatmulShape shape{.rows = kSide,
                                  .columns = kSide,
                                  .inner = kSide,
                                  .x_stride = kSide,
                                  .weight_stride = kSide,
                                  .out_stride = kSide,
                                  .x_dtype = DType::kBFloat16,
                                  .out_dtype = DType::kBFloat16};
    const double seconds = best_seconds(stream, [&] {
      plans.run(shape, {.x = bytes, .weight = bytes + kMatrixBytes, .out = bytes + 2 * kMatrixBytes}, stream);
    });
    rates.matrix_gflop_s = 2.0 * kSide * kSide * kSide / seconds / 1e9;
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
  return rates;
}

}  // namespace shoal
