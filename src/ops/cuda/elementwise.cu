// Activations, sums, mixes, scaling and row gathers. Arithmetic in float; a block takes a piece of one row.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of x may lie apart; `stride` is in elements.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;

  __device__ T& at(std::int64_t row, std::int64_t column) const { return data[row * stride + column]; }
};

template <typename T>
Rows<T> rows_of(const Tensor& x) {
  return {.data = static_cast<T*>(x.raw()), .stride = x.row_stride()};
}

template <typename F>
__global__ void each_kernel(F f, std::int64_t width) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column < width) f(static_cast<std::int64_t>(blockIdx.x), column);
}

// f(row, column) for all of [rows, width].
template <typename F>
void for_each(cudaStream_t stream, std::int64_t rows, std::int64_t width, F f) {
  const dim3 grid(static_cast<unsigned>(rows), blocks_for(width, kThreads));
  each_kernel<<<grid, kThreads, 0, stream>>>(f, width);
  CUDA_CHECK(cudaGetLastError());
}

template <Activation kKind>
__device__ float activate(float x) {
  if constexpr (kKind == Activation::kSilu) return x / (1.0F + expf(-x));
  if constexpr (kKind == Activation::kGeluErf) return 0.5F * x * (1.0F + erff(x * 0.70710678118654752F));
  if constexpr (kKind == Activation::kGeluTanh) {
    return 0.5F * x * (1.0F + tanhf(0.79788456080286536F * (x + 0.044715F * x * x * x)));
  }
  return x > 0.0F || isnan(x) ? x : 0.0F;  // ReLU, which keeps a NaN
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

template <typename T, Activation kKind>
struct Activate {
  Rows<T> x, out;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    out.at(row, column) = from_float<T>(activate<kKind>(to_float(x.at(row, column))));
  }
};

template <typename T, Activation kKind>
struct GatedActivate {
  Rows<T> gate_up, out;
  std::int64_t width;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    const float gate = activate<kKind>(to_float(gate_up.at(row, column)));
    out.at(row, column) = from_float<T>(gate * to_float(gate_up.at(row, column + width)));
  }
};

// out = a * s + b * t.
template <typename T>
struct Combine {
  Rows<T> a, b, out;
  float s, t;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    out.at(row, column) = from_float<T>(to_float(a.at(row, column)) * s + to_float(b.at(row, column)) * t);
  }
};

template <typename T>
struct Scale {
  Rows<T> x, out;
  float factor;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    out.at(row, column) = from_float<T>(to_float(x.at(row, column)) * factor);
  }
};

template <typename T>
struct Gather {
  Rows<T> x, out;
  const std::int64_t* indices;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    out.at(row, column) = x.at(indices[row], column);
  }
};

template <typename T, typename Id>
struct Embed {
  Rows<T> table, out;
  const Id* ids;
  bool accumulate;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    const float value = to_float(table.at(ids[row], column));
    T& result = out.at(row, column);
    result = from_float<T>(accumulate ? to_float(result) + value : value);
  }
};

}  // namespace

void CudaBackend::activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const {
  with_float_type(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_activation(kind, [&](auto constant) {
      for_each(stream_of(ctx), out.dim(0), out.dim(1),
               Activate<T, decltype(constant)::value>{.x = rows_of<T>(x), .out = rows_of<T>(out)});
    });
  });
}

void CudaBackend::gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const {
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    with_activation(kind, [&](auto constant) {
      for_each(stream_of(ctx), out.dim(0), out.dim(1),
               GatedActivate<T, decltype(constant)::value>{
                   .gate_up = rows_of<T>(gate_up), .out = rows_of<T>(out), .width = out.dim(1)});
    });
  });
}

void CudaBackend::add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const {
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Combine<T>{.a = rows_of<T>(a), .b = rows_of<T>(b), .out = rows_of<T>(out), .s = 1.0F, .t = 1.0F});
  });
}

void CudaBackend::mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const {
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Combine<T>{.a = rows_of<T>(a), .b = rows_of<T>(b), .out = rows_of<T>(out), .s = t, .t = 1.0F - t});
  });
}

void CudaBackend::scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const {
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for_each(stream_of(ctx), out.dim(0), out.dim(1),
             Scale<T>{.x = rows_of<T>(x), .out = rows_of<T>(out), .factor = factor});
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
      for_each(stream_of(ctx), out.dim(0), out.dim(1),
               Embed<T, Id>{.table = rows, .out = rows_of<T>(out), .ids = values, .accumulate = accumulate});
    };
    if (ids.dtype() == DType::kInt32) {
      embed(ids.data<std::int32_t>());
    } else {
      embed(ids.data<std::int64_t>());
    }
  });
}

}  // namespace shoal::cuda
