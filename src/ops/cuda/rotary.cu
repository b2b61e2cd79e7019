// Rotary positions and the write of keys and values into their cache blocks.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128;

struct Turned {
  float first, second;
};

template <typename T>
__device__ Turned turn(const T& first, const T& second, const float* angles, int pair, int pairs) {
  const float cosine = angles[pair];
  const float sine = angles[pairs + pair];
  const float a = to_float(first);
  const float b = to_float(second);
  return {a * cosine - b * sine, b * cosine + a * sine};
}

// A thread a pair: block x is the token, y walks over its heads' pairs.
template <typename T, RotaryStyle kStyle>
__global__ void rotary_kernel(T* x, std::int64_t row_stride, const std::int32_t* positions, const float* cos_sin,
                              int head_dim, int pairs, std::int64_t pairs_of_token) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  wait_for_inputs();
  if (index >= pairs_of_token) return;
  const std::int64_t token = blockIdx.x;
  const int pair = static_cast<int>(index % pairs);
  T* head = x + token * row_stride + index / pairs * head_dim;
  T& first = kStyle == RotaryStyle::kHalfSplit ? head[pair] : head[2 * pair];
  T& second = kStyle == RotaryStyle::kHalfSplit ? head[pair + pairs] : head[2 * pair + 1];
  const float* angles = cos_sin + static_cast<std::int64_t>(positions[token]) * 2 * pairs;
  const Turned turned = turn(first, second, angles, pair, pairs);
  first = from_float<T>(turned.first);
  second = from_float<T>(turned.second);
}

template <typename T, typename C>
__global__ void write_cache_kernel(const T* key, const T* value, std::int64_t key_stride, std::int64_t value_stride,
                                   const std::int64_t* slots, C* key_cache, C* value_cache, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  wait_for_inputs();
  if (i >= width) return;
  const std::int64_t token = blockIdx.x;
  const std::int64_t to = slots[token] * width + i;
  key_cache[to] = from_float<C>(to_float(key[token * key_stride + i]));
  value_cache[to] = from_float<C>(to_float(value[token * value_stride + i]));
}

template <typename T, typename C>
struct RotaryWriteArgs {
  T* query;
  const T *key, *value;
  C *key_cache, *value_cache;
  const std::int32_t* positions;
  const float* cos_sin;
  const std::int64_t* slots;
  std::int64_t query_stride, key_stride, value_stride;
  int query_heads, kv_heads, head_dim, pairs;
};

// Block x is the token. y walks over the pairs of the query's heads, then over each key head's pairs and the elements
// behind them, then over the value.
template <typename T, typename C, RotaryStyle kStyle>
__global__ void rotary_write_kernel(RotaryWriteArgs<T, C> args) {
  wait_for_inputs();
  const std::int64_t token = blockIdx.x;
  const float* angles = args.cos_sin + static_cast<std::int64_t>(args.positions[token]) * 2 * args.pairs;
  const std::int64_t slot = args.slots[token] * args.kv_heads * args.head_dim;
  const auto first_of = [](int pair) { return kStyle == RotaryStyle::kHalfSplit ? pair : 2 * pair; };
  const int to_second = kStyle == RotaryStyle::kHalfSplit ? args.pairs : 1;
  int index = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (index < args.query_heads * args.pairs) {
    const int pair = index % args.pairs;
    T* head = args.query + token * args.query_stride + index / args.pairs * args.head_dim;
    T& first = head[first_of(pair)];
    T& second = head[first_of(pair) + to_second];
    const Turned turned = turn(first, second, angles, pair, args.pairs);
    first = from_float<T>(turned.first);
    second = from_float<T>(turned.second);
    return;
  }
  index -= args.query_heads * args.pairs;
  const int units = args.head_dim - args.pairs;  // of a key head
  if (index < args.kv_heads * units) {
    const int unit = index % units;
    const int head_begin = index / units * args.head_dim;
    const T* head = args.key + token * args.key_stride + head_begin;
    C* to = args.key_cache + slot + head_begin;
    if (unit >= args.pairs) {
      to[unit + args.pairs] = from_float<C>(to_float(head[unit + args.pairs]));
      return;
    }
    const int first = first_of(unit);
    const Turned turned = turn(head[first], head[first + to_second], angles, unit, args.pairs);
    // As if it had been rounded in place first.
    to[first] = from_float<C>(to_float(from_float<T>(turned.first)));
    to[first + to_second] = from_float<C>(to_float(from_float<T>(turned.second)));
    return;
  }
  index -= args.kv_heads * units;
  if (index >= args.kv_heads * args.head_dim) return;
  args.value_cache[slot + index] = from_float<C>(to_float(args.value[token * args.value_stride + index]));
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
    launch_early(kernel, grid, kThreads, 0, stream_of(ctx), static_cast<T*>(x.raw()), x.row_stride(),
                 positions.data<std::int32_t>(), cos_sin.data<float>(), head_dim, pairs, pairs_of_token);
  });
}

void CudaBackend::write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                              const Tensor& key_cache, const Tensor& value_cache) const {
  const std::int64_t width = key.row_elements();
  const dim3 grid(static_cast<unsigned>(key.dim(0)), blocks_for(width, kThreads));
  with_float_type(key.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_float_type(key_cache.dtype(), [&](auto cache_tag) {
      using C = typename decltype(cache_tag)::Type;
      launch_early(write_cache_kernel<T, C>, grid, kThreads, 0, stream_of(ctx), static_cast<const T*>(key.raw()),
                   static_cast<const T*>(value.raw()), key.row_stride(), value.row_stride(), slots.data<std::int64_t>(),
                   static_cast<C*>(key_cache.raw()), static_cast<C*>(value_cache.raw()), width);
    });
  });
}

void CudaBackend::rotary_write_cache(Context& ctx, const RotaryWriteInput& in) const {
  const auto pairs = static_cast<int>(in.cos_sin.dim(1) / 2);
  const auto query_heads = static_cast<int>(in.query.dim(1));
  const auto kv_heads = static_cast<int>(in.key.dim(1));
  const auto head_dim = static_cast<int>(in.key.dim(2));
  const int units = query_heads * pairs + kv_heads * (head_dim - pairs + head_dim);
  const dim3 grid(static_cast<unsigned>(in.key.dim(0)), blocks_for(units, kThreads));
  with_float_type(in.key.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_float_type(in.key_cache.dtype(), [&](auto cache_tag) {
      using C = typename decltype(cache_tag)::Type;
      const RotaryWriteArgs<T, C> args{.query = static_cast<T*>(in.query.raw()),
                                       .key = static_cast<const T*>(in.key.raw()),
                                       .value = static_cast<const T*>(in.value.raw()),
                                       .key_cache = static_cast<C*>(in.key_cache.raw()),
                                       .value_cache = static_cast<C*>(in.value_cache.raw()),
                                       .positions = in.positions.data<std::int32_t>(),
                                       .cos_sin = in.cos_sin.data<float>(),
                                       .slots = in.slots.data<std::int64_t>(),
                                       .query_stride = in.query.row_stride(),
                                       .key_stride = in.key.row_stride(),
                                       .value_stride = in.value.row_stride(),
                                       .query_heads = query_heads,
                                       .kv_heads = kv_heads,
                                       .head_dim = head_dim,
                                       .pairs = pairs};
      const auto kernel = in.style == RotaryStyle::kHalfSplit ? rotary_write_kernel<T, C, RotaryStyle::kHalfSplit>
                                                              : rotary_write_kernel<T, C, RotaryStyle::kNeighbours>;
      launch_early(kernel, grid, kThreads, 0, stream_of(ctx), args);
    });
  });
}

}  // namespace shoal::cuda
