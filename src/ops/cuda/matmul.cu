// Products with a weight: own kernels at a few rows, where reading the weight is all the time there is, cuBLASLt
// otherwise.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/matmul_plans.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;

// Each row of out becomes the bias, or grows by it.
template <typename T>
__global__ void bias_kernel(T* out, const float* bias, std::int64_t stride, std::int64_t width, bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= width) return;
  T& value = out[static_cast<std::int64_t>(blockIdx.x) * stride + column];
  value = from_float<T>(accumulate ? to_float(value) + bias[column] : bias[column]);
}

void put_bias(cudaStream_t stream, const Tensor& bias, bool accumulate, const Tensor& out) {
  const dim3 grid(static_cast<unsigned>(out.dim(0)), blocks_for(out.dim(1), kThreads));
  with_float_type(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    bias_kernel<T><<<grid, kThreads, 0, stream>>>(static_cast<T*>(out.raw()), bias.data<float>(), out.row_stride(),
                                                  out.dim(1), accumulate);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void CudaBackend::matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                         const Tensor& out) const {
  const cudaStream_t stream = stream_of(ctx);
  const bool accumulate = mode == MatmulOutput::kAccumulate;
  if (launch_few_rows(x, weight, {.bias = bias, .accumulate = accumulate}, out, stream)) return;
  if (bias.defined() && accumulate && out.dtype() != DType::kFloat32) {
    // Sum and bias would be rounded before the product joins them: it goes through float32.
    const Arena::Scope scope(ctx.arena);
    const Tensor product = ctx.arena.take(DType::kFloat32, {out.dim(0), out.dim(1)});
    matmul(ctx, x, weight, bias, MatmulOutput::kOverwrite, product);
    add(ctx, product, out, out);
    return;
  }
  if (bias.defined()) put_bias(stream, bias, accumulate, out);
  const MatmulShape shape{.rows = x.dim(0),
                          .columns = weight.rows,
                          .inner = weight.cols,
                          .x_stride = x.row_stride(),
                          .weight_stride = weight.cols,
                          .out_stride = out.row_stride(),
                          .x_dtype = weight.dtype,
                          .out_dtype = out.dtype(),
                          .weight_transposed = false,
                          .accumulate = accumulate || bias.defined()};
  matmul_plans_->run(shape, {.x = x.raw(), .weight = weight.storage.raw(), .out = out.raw()}, stream);
}

void CudaBackend::matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias,
                                   Activation kind, const Tensor& out) const {
  if (launch_few_rows(x, weight, {.bias = bias, .activation = kind}, out, stream_of(ctx))) return;
  Backend::matmul_activated(ctx, x, weight, bias, kind, out);
}

}  // namespace shoal::cuda
