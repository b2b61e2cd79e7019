// RMSNorm and LayerNorm: a block a row, sums in float in an order that the width alone fixes.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch.cuh"

namespace shoal::cuda {
namespace {

constexpr int kRowValues = 8192;  // floats of a row that are kept in shared memory; wider rows are read again

struct NormArgs {
  const void* x;
  const float* weight;
  const float* bias;  // or null
  void* out;
  std::int64_t x_stride, out_stride, width;
  float epsilon;
};

// One row of `width` values: out = (x - mean) * rstd * weight + bias; without kCenter the mean is 0.
template <typename X, typename T, bool kCenter>
__device__ void normalize(const X* x, const float* weight, const float* bias, T* out, std::int64_t width, float epsilon,
                          float* kept, float* shared) {
  const bool keeps = width <= kRowValues;
  float sum = 0.0F;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = to_float(x[i]);
    if (keeps) kept[i] = value;
    sum += kCenter ? value : value * value;
  }
  const float scale = 1.0F / static_cast<float>(width);
  float mean = 0.0F;
  float square = 0.0F;
  if constexpr (kCenter) {
    mean = block_sum(sum, shared) * scale;
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float centered = (keeps ? kept[i] : to_float(x[i])) - mean;
      square += centered * centered;
    }
  } else {
    square = sum;
  }
  const float rstd = rsqrtf(block_sum(square, shared) * scale + epsilon);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = ((keeps ? kept[i] : to_float(x[i])) - mean) * rstd * weight[i];
    out[i] = from_float<T>(bias != nullptr ? value + bias[i] : value);
  }
}

template <typename X, typename T, bool kCenter>
__global__ void norm_kernel(NormArgs args) {
  extern __shared__ float kept[];
  __shared__ float shared[kWarp];
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  normalize<X, T, kCenter>(static_cast<const X*>(args.x) + row * args.x_stride, args.weight, args.bias,
                           static_cast<T*>(args.out) + row * args.out_stride, args.width, args.epsilon, kept, shared);
}

// The same for rows that are a multiple of four wide and lie so, up to 4 * kQuads * blockDim.x: they stay in registers.
template <typename X, typename T, bool kCenter, int kQuads>
__global__ void __launch_bounds__(1024) norm_quads_kernel(NormArgs args) {
  __shared__ float shared[kWarp];
  const auto* x = reinterpret_cast<const Pack<X, 4>*>(static_cast<const X*>(args.x) + blockIdx.x * args.x_stride);
  auto* out = reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(args.out) + blockIdx.x * args.out_stride);
  const int quads = static_cast<int>(args.width / 4);
  const float scale = 1.0F / static_cast<float>(args.width);
  float values[kQuads][4];
  float sum = 0.0F;
  wait_for_inputs();
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int at = q * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    const Pack<X, 4> pack = at < quads ? x[at] : Pack<X, 4>{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[q][i] = to_float(pack.v[i]);
      sum += kCenter ? values[q][i] : values[q][i] * values[q][i];
    }
  }
  float mean = 0.0F;
  if constexpr (kCenter) {
    mean = block_sum(sum, shared) * scale;
    sum = 0.0F;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int at = q * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += at < quads ? (values[q][i] - mean) * (values[q][i] - mean) : 0.0F;
    }
  }
  const float rstd = rsqrtf(block_sum(sum, shared) * scale + args.epsilon);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int at = q * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (at >= quads) return;
    const Pack<float, 4> weight = reinterpret_cast<const Pack<float, 4>*>(args.weight)[at];
    Pack<float, 4> bias{};
    if (args.bias != nullptr) bias = reinterpret_cast<const Pack<float, 4>*>(args.bias)[at];
    Pack<T, 4> pack;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pack.v[i] = from_float<T>((values[q][i] - mean) * rstd * weight.v[i] + bias.v[i]);
    }
    out[at] = pack;
  }
}

template <typename T>
__global__ void head_norm_kernel(T* x, const float* weight, std::int64_t row_stride, std::int64_t head_dim,
                                 float epsilon) {
  extern __shared__ float kept[];
  __shared__ float shared[kWarp];
  wait_for_inputs();
  T* head = x + static_cast<std::int64_t>(blockIdx.x) * row_stride + static_cast<std::int64_t>(blockIdx.y) * head_dim;
  normalize<T, T, true>(head, weight + static_cast<std::int64_t>(blockIdx.y) * head_dim, nullptr, head, head_dim,
                        epsilon, kept, shared);
}

unsigned threads_for(std::int64_t width) {
  const std::int64_t wanted = (width + 3) / 4;
  return static_cast<unsigned>(std::clamp<std::int64_t>((wanted + kWarp - 1) / kWarp * kWarp, kWarp, 1024));
}

std::size_t kept_bytes(std::int64_t width) { return width <= kRowValues ? static_cast<std::size_t>(width) * 4 : 0; }

// Whether rows can be read and written four neighbours at a time.
bool in_quads(const Tensor& x) {
  const std::int64_t bytes = 4 * dtype_bytes(x.dtype());
  return x.dim(1) % 4 == 0 && x.row_stride() % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.raw()) % static_cast<std::uintptr_t>(bytes) == 0;
}

template <bool kCenter>
void launch_norm(cudaStream_t stream, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                 const Tensor& out) {
  const NormArgs args{.x = x.raw(),
                      .weight = weight.data<float>(),
                      .bias = bias.defined() ? bias.data<float>() : nullptr,
                      .out = out.raw(),
                      .x_stride = x.row_stride(),
                      .out_stride = out.row_stride(),
                      .width = x.dim(1),
                      .epsilon = epsilon};
  const auto rows = static_cast<unsigned>(x.dim(0));
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto launch = [&](auto x_tag) {
      using X = typename decltype(x_tag)::Type;
      const unsigned threads = threads_for(args.width);
      if (!in_quads(x) || !in_quads(out) || args.width > std::int64_t{8} * threads) {
        launch_early(norm_kernel<X, T, kCenter>, rows, threads, kept_bytes(args.width), stream, args);
      } else if (args.width <= std::int64_t{4} * threads) {
        launch_early(norm_quads_kernel<X, T, kCenter, 1>, rows, threads, 0, stream, args);
      } else {
        launch_early(norm_quads_kernel<X, T, kCenter, 2>, rows, threads, 0, stream, args);
      }
    };
    // The residual stream is float32 whatever the activations are.
    if (x.dtype() == DType::kFloat32) {
      launch(TypeTag<float>{});
    } else {
      launch(tag);
    }
  });
}

}  // namespace

void CudaBackend::rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon,
                           const Tensor& out) const {
  launch_norm<false>(stream_of(ctx), x, weight, Tensor(), epsilon, out);
}

void CudaBackend::layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                             const Tensor& out) const {
  launch_norm<true>(stream_of(ctx), x, weight, bias, epsilon, out);
}

void CudaBackend::head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) const {
  const dim3 grid(static_cast<unsigned>(x.dim(0)), static_cast<unsigned>(x.dim(1)));
  with_float_type(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launch_early(head_norm_kernel<T>, grid, threads_for(x.dim(2)), kept_bytes(x.dim(2)), stream_of(ctx),
                 static_cast<T*>(x.raw()), weight.data<float>(), x.row_stride(), x.dim(2), epsilon);
  });
}

}  // namespace shoal::cuda
