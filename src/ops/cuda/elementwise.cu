// Activations, sums, mixes, scaling and row gathers. Arithmetic in float; a block takes a piece of one row.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of x may lie apart; `stride` is in elements.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;

  template <int N>
  __device__ void load(std::int64_t row, std::int64_t column, float (&values)[N]) const {
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(data + row * stride + column);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = to_float(pack.v[i]);
  }
  template <int N>
  __device__ void store(std::int64_t row, std::int64_t column, const float (&values)[N]) const {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(values[i]);
    *reinterpret_cast<Pack<T, N>*>(data + row * stride + column) = pack;
  }
  bool takes(int n) const { return reinterpret_cast<std::uintptr_t>(data) % (sizeof(T) * n) == 0 && stride % n == 0; }
};

template <typename T>
Rows<T> rows_of(const Tensor& x) {
  return {.data = static_cast<T*>(x.raw()), .stride = x.row_stride()};
}

template <int N, typename F>
__global__ void each_kernel(F f, std::int64_t width) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  wait_for_inputs();
  if (column < width) f.template run<N>(static_cast<std::int64_t>(blockIdx.x), column);
}

// f.run<N>(row, column) for all of [rows, width], N neighbouring columns at a time: four, or one where some row does
// not start at a multiple of them.
template <typename F>
void for_each(cudaStream_t stream, std::int64_t rows, std::int64_t width, const F& f) {
  constexpr int kWide = 4;
  const bool wide = width % kWide == 0 && f.takes(kWide);
  const auto kernel = wide ? each_kernel<kWide, F> : each_kernel<1, F>;
  const dim3 grid(static_cast<unsigned>(rows), blocks_for(width, std::int64_t{kThreads} * (wide ? kWide : 1)));
  launch_early(kernel, grid, kThreads, 0, stream, f, width);
}

template <typename X, typename T, Activation kKind>
struct Activate {
  Rows<X> x;
  Rows<T> out;
  bool takes(int n) const { return x.takes(n) && out.takes(n); }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float values[N];
    x.load(row, column, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = activate<kKind>(values[i]);
    out.store(row, column, values);
  }
};

template <typename X, typename T, Activation kKind>
struct GatedActivate {
  Rows<X> gate_up;
  Rows<T> out;
  std::int64_t width;
  bool takes(int n) const { return gate_up.takes(n) && out.takes(n) && width % n == 0; }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float gate[N];
    float up[N];
    gate_up.load(row, column, gate);
    gate_up.load(row, column + width, up);
#pragma unroll
    for (int i = 0; i < N; ++i) up[i] *= activate<kKind>(gate[i]);
    out.store(row, column, up);
  }
};

// out = a * s + b * t.
template <typename A, typename T>
struct Combine {
  Rows<A> a;
  Rows<T> b, out;
  float s, t;
  bool takes(int n) const { return a.takes(n) && b.takes(n) && out.takes(n); }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float left[N];
    float right[N];
    a.load(row, column, left);
    b.load(row, column, right);
#pragma unroll
    for (int i = 0; i < N; ++i) left[i] = left[i] * s + right[i] * t;
    out.store(row, column, left);
  }
};

template <typename X, typename T>
struct Scale {
  Rows<X> x;
  Rows<T> out;
  float factor;
  bool takes(int n) const { return x.takes(n) && out.takes(n); }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float values[N];
    x.load(row, column, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= factor;
    out.store(row, column, values);
  }
};

template <typename T>
struct Gather {
  Rows<T> x, out;
  const std::int64_t* indices;
  bool takes(int n) const { return x.takes(n) && out.takes(n); }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float values[N];
    x.load(indices[row], column, values);
    out.store(row, column, values);
  }
};

template <typename T, typename Out, typename Id>
struct Embed {
  Rows<T> table;
  Rows<Out> out;
  const Id* ids;
  bool accumulate;
  bool takes(int n) const { return table.takes(n) && out.takes(n); }
  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    float values[N];
    table.load(ids[row], column, values);
    if (accumulate) {
      float before[N];
      out.load(row, column, before);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += before[i];
    }
    out.store(row, column, values);
  }
};

}  // namespace

void CudaBackend::activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const {
  with_two_types(x.dtype(), out.dtype(), [&]<typename X, typename T>() {
    with_activation(kind, [&](auto constant) {
      for_each(stream_of(ctx), out.dim(0), out.dim(1),
               Activate<X, T, decltype(constant)::value>{.x = rows_of<X>(x), .out = rows_of<T>(out)});
    });
  });
}

void CudaBackend::gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const {
  with_two_types(gate_up.dtype(), out.dtype(), [&]<typename X, typename T>() {
    with_activation(kind, [&](auto constant) {
      for_each(stream_of(ctx), out.dim(0), out.dim(1),
               GatedActivate<X, T, decltype(constant)::value>{
                   .gate_up = rows_of<X>(gate_up), .out = rows_of<T>(out), .width = out.dim(1)});
    });
  });
}

void CudaBackend::add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const {
  with_two_types(a.dtype(), out.dtype(), [&]<typename A, typename T>() {
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Combine<A, T>{.a = rows_of<A>(a), .b = rows_of<T>(b), .out = rows_of<T>(out), .s = 1.0F, .t = 1.0F});
  });
}

void CudaBackend::mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const {
  with_two_types(a.dtype(), out.dtype(), [&]<typename A, typename T>() {
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Combine<A, T>{.a = rows_of<A>(a), .b = rows_of<T>(b), .out = rows_of<T>(out), .s = t, .t = 1.0F - t});
  });
}

void CudaBackend::scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const {
  with_two_types(x.dtype(), out.dtype(), [&]<typename X, typename T>() {
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Scale<X, T>{.x = rows_of<X>(x), .out = rows_of<T>(out), .factor = factor});
  });
}

void CudaBackend::gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) const {
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Gather<T>{.x = rows_of<T>(x), .out = rows_of<T>(out), .indices = indices.data<std::int64_t>()});
  });
}

void CudaBackend::embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                            const Tensor& out) const {
  const bool accumulate = mode == EmbeddingOutput::kAccumulate;
  with_float_type(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rows<T> rows{.data = static_cast<T*>(table.storage.raw()), .stride = table.cols};
    const auto embed = [&]<typename Id>(const Id* values) {
      const auto into = [&]<typename Out>(Rows<Out> rows_out) {
        for_each(stream_of(ctx), out.dim(0), out.dim(1),
                 Embed<T, Out, Id>{.table = rows, .out = rows_out, .ids = values, .accumulate = accumulate});
      };
      if (out.dtype() == table.dtype) {
        into(rows_of<T>(out));
      } else {
        into(rows_of<float>(out));
      }
    };
    if (ids.dtype() == DType::kInt32) {
      embed(ids.data<std::int32_t>());
    } else {
      embed(ids.data<std::int64_t>());
    }
  });
}

}  // namespace shoal::cuda
