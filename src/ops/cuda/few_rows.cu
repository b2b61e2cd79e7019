// One to eight warps take a row of the weight (an output column) and walk along it 16 bytes a lane, several loads ahead
// of their use; the few rows of x come from the first cache. Each output's order of summation depends on the weight's
// shape alone.
#include "ops/cuda/few_rows.h"

#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch.cuh"

namespace shoal::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostRows = 2;  // beyond, cuBLAS is the faster one
constexpr int kInFlight = 4;  // loads of 16 bytes a lane

struct FewRowsArgs {
  const void* x;
  const void* weight;
  const float* bias;  // or null
  void* out;
  std::int64_t x_stride, out_stride;
  int columns, inner;
  int team;  // warps of one column: 1, 2, 4 or 8
  bool accumulate;
  Activation activation;  // where the kernel has one
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

template <typename Out, bool kActivated, int kRows>
__device__ void put_column(const FewRowsArgs& args, int column, const float (&sums)[kRows]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    Out& out = static_cast<Out*>(args.out)[row * args.out_stride + column];
    float sum = sums[row];
    if (args.bias != nullptr) sum += args.bias[column];
    if (args.accumulate) sum += to_float(out);
    if constexpr (kActivated) sum = activate(args.activation, sum);
    out = from_float<Out>(sum);
  }
}

template <typename T>
constexpr int kStride = 16 / static_cast<int>(sizeof(T)) * kWarp;
template <typename T>
constexpr int kChunk = kInFlight * kStride<T>;

// Registers are bounded so that enough warps fit to keep the memory busy.
template <typename T, typename Out, bool kActivated, int kRows>
__global__ void __launch_bounds__(kThreads, 5) few_rows_kernel(FewRowsArgs args) {
  __shared__ float parts[kWarps][kRows];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int in_team = warp % args.team;
  const int column = (static_cast<int>(blockIdx.x) * kWarps + warp) / args.team;
  const bool works = column < args.columns;
  const int lane_begin = lane * (16 / static_cast<int>(sizeof(T)));
  const int chunks = args.inner / kChunk<T>;  // whole ones; the rest is the last warp's
  const int begin = chunks * in_team / args.team * kChunk<T> + lane_begin;
  const int end = chunks * (in_team + 1) / args.team * kChunk<T> + lane_begin;
  const T* weight = static_cast<const T*>(args.weight) + static_cast<std::int64_t>(works ? column : 0) * args.inner;
  const T* x = static_cast<const T*>(args.x);
  uint4 loaded[kInFlight];
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) loaded[i] = load_streaming(weight + k + i * kStride<T>);
  };
  // The first weights are on their way before x is there.
  if (begin < end) load(begin);
  wait_for_inputs();
  float sums[kRows] = {};
#pragma unroll 1
  for (int k = begin; k < end; k += kChunk<T>) {
    if (k > begin) load(k);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      multiply_chunk<T, kRows>(loaded[i], x + k + i * kStride<T>, args.x_stride, sums);
    }
  }
  if (in_team == args.team - 1) {
    const int rest = chunks * kChunk<T> + lane_begin;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int k = rest + i * kStride<T>;
      loaded[i] = k < args.inner ? load_streaming(weight + k) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int k = rest + i * kStride<T>;
      if (k < args.inner) multiply_chunk<T, kRows>(loaded[i], x + k, args.x_stride, sums);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) sums[row] = warp_sum(sums[row]);
  if (args.team > 1) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) parts[warp][row] = sums[row];
    __syncthreads();
    for (int part = 1; part < args.team && in_team == 0; ++part) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row] += parts[warp + part][row];
    }
  }
  if (works && lane == 0 && in_team == 0) put_column<Out, kActivated, kRows>(args, column, sums);
}

// Each warp has two chunks of its column or more; one where the columns alone are too few to fill a GPU.
int team_for(std::int64_t columns, std::int64_t inner, std::int64_t chunk) {
  constexpr std::int64_t kEnoughBlocks = 512;
  int team = 1;
  const auto fits = [&](std::int64_t chunks_each) { return team < kWarps && inner >= 2 * team * chunks_each * chunk; };
  while (fits(2) || (fits(1) && columns * team < kEnoughBlocks * kWarps)) team *= 2;
  return team;
}

// Outputs have the weight's dtype, or are float32; those of float16 weights may go to layers of bfloat16.
template <typename T, typename Out>
constexpr bool kPair = std::is_same_v<T, Out> || std::is_same_v<Out, float> ||
                       (std::is_same_v<T, __half> && std::is_same_v<Out, __nv_bfloat16>);

template <typename T, typename Out, bool kActivated>
void launch(FewRowsArgs args, std::int64_t rows, cudaStream_t stream) {
  args.team = team_for(args.columns, args.inner, kChunk<T>);
  const unsigned grid = blocks_for(args.columns, kWarps / args.team);
  if (rows == 1) {
    launch_early(few_rows_kernel<T, Out, kActivated, 1>, grid, kThreads, 0, stream, args);
  } else {
    launch_early(few_rows_kernel<T, Out, kActivated, kMostRows>, grid, kThreads, 0, stream, args);
  }
}

bool aligned(const void* data, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

}  // namespace

bool launch_few_rows(const Tensor& x, const Matrix& weight, const FewRowsEpilogue& epilogue, const Tensor& out,
                     cudaStream_t stream) {
  const std::int64_t element_bytes = dtype_bytes(weight.dtype);
  if (x.dim(0) > kMostRows || !aligned(weight.storage.raw(), weight.cols * element_bytes) ||
      !aligned(x.raw(), x.row_stride() * element_bytes)) {
    return false;
  }
  const FewRowsArgs args{.x = x.raw(),
                         .weight = weight.storage.raw(),
                         .bias = epilogue.bias.defined() ? epilogue.bias.data<float>() : nullptr,
                         .out = out.raw(),
                         .x_stride = x.row_stride(),
                         .out_stride = out.row_stride(),
                         .columns = static_cast<int>(weight.rows),
                         .inner = static_cast<int>(weight.cols),
                         .team = 1,
                         .accumulate = epilogue.accumulate,
                         .activation = epilogue.activation.value_or(Activation::kRelu)};
  with_float_type(weight.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_float_type(out.dtype(), [&](auto out_tag) {
      using Out = typename decltype(out_tag)::Type;
      if constexpr (!kPair<T, Out>) {
        CHECK(false);
      } else if (epilogue.activation.has_value()) {
        launch<T, Out, true>(args, x.dim(0), stream);
      } else {
        launch<T, Out, false>(args, x.dim(0), stream);
      }
    });
  });
  return true;
}

}  // namespace shoal::cuda
