#include "ops/cuda/cuda_backend.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/result.h"
#include "ops/backends.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/device_memory.h"
#include "ops/cuda/matmul_plans.h"
#include "ops/cuda/weight_upload.h"

namespace shoal {
namespace cuda {
namespace {

constexpr int kOldestCapability = 80;  // major * 10 + minor

// What keeps device 0 from being used, in one line; throws StartError with it.
cudaDeviceProp open_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    throw StartError("--device cuda: no NVIDIA driver, or one older than CUDA 13.0 needs (580)");
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    throw StartError("--device cuda: no NVIDIA GPU on this machine");
  }
  check(error, "cudaGetDeviceCount");
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  if (properties.major * 10 + properties.minor < kOldestCapability) {
    throw StartError(fmt::format("--device cuda: {} has compute capability {}.{}, expected {}.{} or newer",
                                 properties.name, properties.major, properties.minor, kOldestCapability / 10,
                                 kOldestCapability % 10));
  }
  const cudaError_t opened = cudaSetDevice(0);
  if (opened == cudaErrorDevicesUnavailable) {
    throw StartError(fmt::format("--device cuda: {} is in use by another process alone", properties.name));
  }
  check(opened, "cudaSetDevice");
  return properties;
}

void check_copy(const Tensor& from, const Tensor& to) {
  CHECK(from.contiguous());
  CHECK(to.contiguous());
  CHECK_EQ(from.num_bytes(), to.num_bytes());
}

void copy_bytes(void* to, const Tensor& from, const Tensor& checked_to, cudaMemcpyKind kind, cudaStream_t stream) {
  check_copy(from, checked_to);
  if (from.num_bytes() == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(to, from.raw(), static_cast<std::size_t>(from.num_bytes()), kind, stream));
}

// Copies `part` into `whole`, whose rows may be longer, from this byte on.
void place(const Matrix& part, const Matrix& whole, std::int64_t byte_offset, cudaStream_t stream) {
  CHECK_EQ(dtype_name(part.dtype), dtype_name(whole.dtype));
  const auto row_bytes = static_cast<std::size_t>(part.cols * dtype_bytes(part.dtype));
  CUDA_CHECK(cudaMemcpy2DAsync(static_cast<std::byte*>(whole.storage.raw()) + byte_offset,
                               static_cast<std::size_t>(whole.cols * dtype_bytes(whole.dtype)), part.storage.raw(),
                               row_bytes, row_bytes, static_cast<std::size_t>(part.rows), cudaMemcpyDeviceToDevice,
                               stream));
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw StartError(fmt::format("CUDA: {} ({}) at {}", cudaGetErrorString(error), cudaGetErrorName(error), call));
}

CudaBackend::CudaBackend() {
  const cudaDeviceProp properties = open_device();
  name_ = fmt::format("cuda/{}", properties.name);
  multiprocessors_ = properties.multiProcessorCount;
  has_clusters_ = properties.major >= 9;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&load_stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&side_begin_, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&side_end_, cudaEventDisableTiming));
  matmul_plans_ = std::make_unique<MatmulPlans>();
  weight_upload_ = std::make_unique<WeightUpload>();
}

CudaBackend::~CudaBackend() {
  matmul_plans_.reset();
  weight_upload_.reset();
  cudaEventDestroy(side_begin_);
  cudaEventDestroy(side_end_);
  cudaStreamDestroy(side_stream_);
  cudaStreamDestroy(load_stream_);
  cudaStreamDestroy(stream_);
}

const Allocator& CudaBackend::allocator() const { return device_allocator(); }

const Allocator& CudaBackend::staging_allocator() const { return pinned_allocator(); }

void CudaBackend::synchronize(Stream stream) const {
  CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)));
}

DeviceEvent CudaBackend::make_event() const {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return {.handle = event};
}

void CudaBackend::record(DeviceEvent event, Stream stream) const {
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event.handle), static_cast<cudaStream_t>(stream.handle)));
}

void CudaBackend::wait(DeviceEvent event) const {
  CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event.handle)));
}

void CudaBackend::destroy(DeviceEvent event) const { cudaEventDestroy(static_cast<cudaEvent_t>(event.handle)); }

std::int64_t CudaBackend::free_memory_bytes() const {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<std::int64_t>(free_bytes);
}

void CudaBackend::begin_capture(Stream stream) const {
  // Loader threads allocate meanwhile: only this thread's calls are watched.
  CUDA_CHECK(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream.handle), cudaStreamCaptureModeThreadLocal));
}

Graph CudaBackend::end_capture(Stream stream) const {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(static_cast<cudaStream_t>(stream.handle), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  return {.handle = executable};
}

void CudaBackend::launch(Graph graph, Stream stream) const {
  CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), static_cast<cudaStream_t>(stream.handle)));
}

double CudaBackend::timed_launch(Graph graph, Stream stream) const {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaEventRecord(begin, static_cast<cudaStream_t>(stream.handle)));
  launch(graph, stream);
  CUDA_CHECK(cudaEventRecord(end, static_cast<cudaStream_t>(stream.handle)));
  CUDA_CHECK(cudaEventSynchronize(end));
  float milliseconds = 0.0F;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds * 1e-3;
}

void CudaBackend::release(Graph graph) const { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle)); }

Matrix CudaBackend::allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const {
  CHECK(is_float(dtype));
  Matrix matrix{.rows = rows, .cols = cols, .dtype = dtype, .format = WeightFormat::kPlain, .storage = {}};
  matrix.storage = Buffer(device_allocator(), rows * cols * dtype_bytes(dtype));
  return matrix;
}

Matrix CudaBackend::concat_rows(const Matrix& a, const Matrix& b) const {
  CHECK_EQ(a.cols, b.cols);
  Matrix both = allocate_matrix(a.dtype, a.rows + b.rows, a.cols);
  place(a, both, 0, load_stream_);
  place(b, both, a.rows * a.cols * dtype_bytes(a.dtype), load_stream_);
  CUDA_CHECK(cudaStreamSynchronize(load_stream_));
  return both;
}

Matrix CudaBackend::concat_columns(const Matrix& a, const Matrix& b) const {
  CHECK_EQ(a.rows, b.rows);
  Matrix both = allocate_matrix(a.dtype, a.rows, a.cols + b.cols);
  place(a, both, 0, load_stream_);
  place(b, both, a.cols * dtype_bytes(a.dtype), load_stream_);
  CUDA_CHECK(cudaStreamSynchronize(load_stream_));
  return both;
}

// In pieces, each waited for: one engine copies to the device, in order, and a step's arrays must not stand in line
// behind a whole adapter.
void CudaBackend::copy_to_device(const Tensor& host, const Tensor& device) const {
  constexpr std::int64_t kPiece = std::int64_t{2} << 20;
  check_copy(host, device);
  for (std::int64_t begin = 0; begin < host.num_bytes(); begin += kPiece) {
    const auto num_bytes = static_cast<std::size_t>(std::min(kPiece, host.num_bytes() - begin));
    CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(device.raw()) + begin,
                               static_cast<const std::byte*>(host.raw()) + begin, num_bytes, cudaMemcpyHostToDevice,
                               load_stream_));
    CUDA_CHECK(cudaStreamSynchronize(load_stream_));
  }
}

void CudaBackend::copy_to_host(const Tensor& device, const Tensor& host) const {
  copy_bytes(host.raw(), device, host, cudaMemcpyDeviceToHost, load_stream_);
  CUDA_CHECK(cudaStreamSynchronize(load_stream_));
}

void CudaBackend::upload(Stream stream, const Tensor& host, const Tensor& device) const {
  copy_bytes(device.raw(), host, device, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream.handle));
}

void CudaBackend::download(Stream stream, const Tensor& device, const Tensor& host) const {
  copy_bytes(host.raw(), device, host, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream.handle));
}

void CudaBackend::copy(Stream stream, const Tensor& from, const Tensor& to) const {
  copy_bytes(to.raw(), from, to, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream.handle));
}

void CudaBackend::fill_bytes(Stream stream, const Tensor& tensor, std::uint8_t value) const {
  CHECK(tensor.contiguous());
  if (tensor.num_bytes() == 0) return;
  CUDA_CHECK(cudaMemsetAsync(tensor.raw(), value, static_cast<std::size_t>(tensor.num_bytes()),
                             static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace cuda

bool cuda_is_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<cuda::CudaBackend>(); }

}  // namespace shoal
