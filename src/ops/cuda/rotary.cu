// Rotary positions and the write of keys and values into their cache blocks.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128;

// A thread a pair: block x is the token, y walks over its heads' pairs.
template <typename T, RotaryStyle kStyle>
__global__ void rotary_kernel(T* x, std::int64_t row_stride, const std::int32_t* positions, const float* cos_sin,
                              int head_dim, int pairs, std::int64_t pairs_of_token) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (index >= pairs_of_token) return;
  const std::int64_t token = blockIdx.x;
  const int pair = static_cast<int>(index % pairs);
  T* head = x + token * row_stride + index / pairs * head_dim;
  T& first = kStyle == RotaryStyle::kHalfSplit ? head[pair] : head[2 * pair];
  T& second = kStyle == RotaryStyle::kHalfSplit ? head[pair + pairs] : head[2 * pair + 1];
  const float* angles = cos_sin + static_cast<std::int64_t>(positions[token]) * 2 * pairs;
  const float cosine = angles[pair];
  const float sine = angles[pairs + pair];
  const float a = to_float(first);
  const float b = to_float(second);
  first = from_float<T>(a * cosine - b * sine);
  second = from_float<T>(b * cosine + a * sine);
}

template <typename T, typename C>
__global__ void write_cache_kernel(const T* key, const T* value, std::int64_t key_stride, std::int64_t value_stride,
                                   const std::int64_t* slots, C* key_cache, C* value_cache, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= width) return;
  const std::int64_t token = blockIdx.x;
  const std::int64_t to = slots[token] * width + i;
  key_cache[to] = from_float<C>(to_float(key[token * key_stride + i]));
  value_cache[to] = from_float<C>(to_float(value[token * value_stride + i]));
}

}  // namespace

void CudaBackend::rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                         const Tensor& x) const {
  const auto head_dim = static_cast<int>(x.dim(2));
  const auto pairs = static_cast<int>(cos_sin.dim(1) / 2);
  const std::int64_t pairs_of_token = x.dim(1) * pairs;
  if (pairs_of_token == 0) return;
  const dim3 grid(static_cast<unsigned>(x.dim(0)), blocks_for(pairs_of_token, kThreads));
  with_float_type(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto kernel = style == RotaryStyle::kHalfSplit ? rotary_kernel<T, RotaryStyle::kHalfSplit>
                                                         : rotary_kernel<T, RotaryStyle::kNeighbours>;
    kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(static_cast<T*>(x.raw()), x.row_stride(),
                                                  positions.data<std::int32_t>(), cos_sin.data<float>(), head_dim,
                                                  pairs, pairs_of_token);
  });
  CUDA_CHECK(cudaGetLastError());
}

void CudaBackend::write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                              const Tensor& key_cache, const Tensor& value_cache) const {
  const std::int64_t width = key.row_elements();
  const dim3 grid(static_cast<unsigned>(key.dim(0)), blocks_for(width, kThreads));
  with_float_type(key.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_float_type(key_cache.dtype(), [&](auto cache_tag) {
      using C = typename decltype(cache_tag)::Type;
      write_cache_kernel<T, C><<<grid, kThreads, 0, stream_of(ctx)>>>(
          static_cast<const T*>(key.raw()), static_cast<const T*>(value.raw()), key.row_stride(), value.row_stride(),
          slots.data<std::int64_t>(), static_cast<C*>(key_cache.raw()), static_cast<C*>(value_cache.raw()), width);
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shoal::cuda
