// What the kernels share: floats of any width, activations, warp and block sums. Used by the .cu files of this folder.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/check.h"
#include "core/dtype.h"
#include "ops/modes.h"

namespace shoal::cuda {

constexpr int kWarp = 32;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

template <typename T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// N neighbours, loaded and stored as one; N * sizeof(T) is 16 or less and the address a multiple of it.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

__device__ inline float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  return value;
}

// The sum over all threads of a block of up to 1,024, in every thread; `shared` holds 32 floats. The order is fixed.
__device__ inline float block_sum(float value, float* shared) {
  value = warp_sum(value);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  const int warps = (static_cast<int>(blockDim.x) + kWarp - 1) / kWarp;
  return warp_sum(lane < warps ? shared[lane] : 0.0F);
}

template <typename T>
struct TypeTag {
  using Type = T;
};

// f(TypeTag<T>{}) for the type of a float dtype.
template <typename F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(TypeTag<float>{});
    case DType::kBFloat16:
      return f(TypeTag<__nv_bfloat16>{});
    case DType::kFloat16:
      return f(TypeTag<__half>{});
    default:
      CHECK(false);
  }
}

// f.operator()<X, T>() where x has the dtype of out, or is float32.
template <typename F>
void with_two_types(DType x, DType out, const F& f) {
  with_float_type(out, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (x == out) {
      f.template operator()<T, T>();
    } else {
      CHECK(x == DType::kFloat32);
      f.template operator()<float, T>();
    }
  });
}

template <Activation kKind>
__device__ inline float activate(float x) {
  if constexpr (kKind == Activation::kSilu) return x / (1.0F + expf(-x));
  if constexpr (kKind == Activation::kGeluErf) return 0.5F * x * (1.0F + erff(x * 0.70710678118654752F));
  if constexpr (kKind == Activation::kGeluTanh) {
    return 0.5F * x * (1.0F + tanhf(0.79788456080286536F * (x + 0.044715F * x * x * x)));
  }
  return x > 0.0F || isnan(x) ? x : 0.0F;  // ReLU, which keeps a NaN
}

// The same where the kind is known only when it runs.
__device__ inline float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu:
      return activate<Activation::kSilu>(x);
    case Activation::kGeluErf:
      return activate<Activation::kGeluErf>(x);
    case Activation::kGeluTanh:
      return activate<Activation::kGeluTanh>(x);
    case Activation::kRelu:
      return activate<Activation::kRelu>(x);
  }
  return x;
}

// f(constant) for each kind of activation.
template <typename F>
void with_activation(Activation kind, F&& f) {
  switch (kind) {
    case Activation::kSilu:
      return f(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGeluErf:
      return f(std::integral_constant<Activation, Activation::kGeluErf>{});
    case Activation::kGeluTanh:
      return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kRelu:
      return f(std::integral_constant<Activation, Activation::kRelu>{});
  }
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace shoal::cuda
