// A warp takes a row of the weight (an output column) and walks along it 16 bytes a lane, several loads ahead of their
// use; the few rows of x come from the first cache. Each output's order of summation depends on K alone.
#include "ops/cuda/few_rows.h"

#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostRows = 2;  // beyond, cuBLAS is the faster one
constexpr int kInFlight = 4;  // loads of 16 bytes a lane

struct FewRowsArgs {
  const void* x;
  const void* weight;
  const float* bias;  // or null
  void* out;
  std::int64_t x_stride, out_stride, columns, inner;
  bool accumulate;
};

// Read once: no reason to push anything else out of the caches.
__device__ inline uint4 load_streaming(const void* pointer) { return __ldcs(static_cast<const uint4*>(pointer)); }

template <typename T, int kRows>
__device__ void multiply_chunk(const uint4& weights, const T* x, std::int64_t x_stride, float (&sums)[kRows]) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  const auto& w = *reinterpret_cast<const Pack<T, kEach>*>(&weights);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const Pack<T, kEach> values = *reinterpret_cast<const Pack<T, kEach>*>(x + row * x_stride);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[row] = fmaf(to_float(w.v[i]), to_float(values.v[i]), sums[row]);
  }
}

template <typename T, typename Out, int kRows>
__global__ void __launch_bounds__(kWarps* kWarp) few_rows_kernel(FewRowsArgs args) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  constexpr int kStride = kEach * kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (column >= args.columns) return;
  const T* weight = static_cast<const T*>(args.weight) + column * args.inner + lane * kEach;
  const T* x = static_cast<const T*>(args.x) + lane * kEach;
  const std::int64_t mine = args.inner - lane * kEach;  // what is left from this lane's first element on
  float sums[kRows] = {};
  std::int64_t k = 0;
  for (; k + kInFlight * kStride <= args.inner; k += kInFlight * kStride) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) loaded[i] = load_streaming(weight + k + i * kStride);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) multiply_chunk<T, kRows>(loaded[i], x + k + i * kStride, args.x_stride, sums);
  }
  for (; k < mine; k += kStride) multiply_chunk<T, kRows>(load_streaming(weight + k), x + k, args.x_stride, sums);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float sum = warp_sum(sums[row]);
    if (lane != row) continue;
    Out& out = static_cast<Out*>(args.out)[row * args.out_stride + column];
    if (args.bias != nullptr) sum += args.bias[column];
    if (args.accumulate) sum += to_float(out);
    out = from_float<Out>(sum);
  }
}

template <typename T, typename Out>
void launch(const FewRowsArgs& args, std::int64_t rows, cudaStream_t stream) {
  const unsigned grid = blocks_for(args.columns, kWarps);
  constexpr int kThreads = kWarps * kWarp;
  switch (rows) {
    case 1:
      few_rows_kernel<T, Out, 1><<<grid, kThreads, 0, stream>>>(args);
      break;
    default:
      few_rows_kernel<T, Out, kMostRows><<<grid, kThreads, 0, stream>>>(args);
  }
  CUDA_CHECK(cudaGetLastError());
}

bool aligned(const void* data, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

}  // namespace

bool launch_few_rows(const Tensor& x, const Matrix& weight, const Tensor& bias, bool accumulate, const Tensor& out,
                     cudaStream_t stream) {
  const std::int64_t element_bytes = dtype_bytes(weight.dtype);
  if (x.dim(0) > kMostRows || !aligned(weight.storage.raw(), weight.cols * element_bytes) ||
      !aligned(x.raw(), x.row_stride() * element_bytes)) {
    return false;
  }
  const FewRowsArgs args{.x = x.raw(),
                         .weight = weight.storage.raw(),
                         .bias = bias.defined() ? bias.data<float>() : nullptr,
                         .out = out.raw(),
                         .x_stride = x.row_stride(),
                         .out_stride = out.row_stride(),
                         .columns = weight.rows,
                         .inner = weight.cols,
                         .accumulate = accumulate};
  with_float_type(weight.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (out.dtype() == weight.dtype) {
      launch<T, T>(args, x.dim(0), stream);
    } else {
      launch<T, float>(args, x.dim(0), stream);
    }
  });
  return true;
}

}  // namespace shoal::cuda
