// RMSNorm and LayerNorm: a block a row, sums in float in an order that the width alone fixes.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

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
  const std::int64_t row = blockIdx.x;
  normalize<X, T, kCenter>(static_cast<const X*>(args.x) + row * args.x_stride, args.weight, args.bias,
                           static_cast<T*>(args.out) + row * args.out_stride, args.width, args.epsilon, kept, shared);
}

template <typename T>
__global__ void head_norm_kernel(T* x, const float* weight, std::int64_t row_stride, std::int64_t head_dim,
                                 float epsilon) {
  extern __shared__ float kept[];
  __shared__ float shared[kWarp];
  T* head = x + static_cast<std::int64_t>(blockIdx.x) * row_stride + static_cast<std::int64_t>(blockIdx.y) * head_dim;
  normalize<T, T, true>(head, weight + static_cast<std::int64_t>(blockIdx.y) * head_dim, nullptr, head, head_dim,
                        epsilon, kept, shared);
}

unsigned threads_for(std::int64_t width) {
  const std::int64_t wanted = (width + 3) / 4;
  return static_cast<unsigned>(std::clamp<std::int64_t>((wanted + kWarp - 1) / kWarp * kWarp, kWarp, 1024));
}

std::size_t kept_bytes(std::int64_t width) { return width <= kRowValues ? static_cast<std::size_t>(width) * 4 : 0; }

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
    // The residual stream is float32 whatever the activations are.
    const auto kernel = x.dtype() == DType::kFloat32 ? norm_kernel<float, T, kCenter> : norm_kernel<T, T, kCenter>;
    kernel<<<rows, threads_for(args.width), kept_bytes(args.width), stream>>>(args);
  });
  CUDA_CHECK(cudaGetLastError());
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
    head_norm_kernel<T><<<grid, threads_for(x.dim(2)), kept_bytes(x.dim(2)), stream_of(ctx)>>>(
        static_cast<T*>(x.raw()), weight.data<float>(), x.row_stride(), x.dim(2), epsilon);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
