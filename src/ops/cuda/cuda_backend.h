// CudaBackend: the ops on an NVIDIA GPU, each in a .cu file of this folder. Activations have the dtype of the weights;
// sums run in float.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "ops/backend.h"

namespace shoal::cuda {

class MatmulPlans;
class WeightUpload;

inline cudaStream_t stream_of(const Context& ctx) { return static_cast<cudaStream_t>(ctx.stream.handle); }

class CudaBackend final : public Backend {
 public:
  // Takes device 0. StartError names what is missing: a driver, a new enough one, a GPU.
  CudaBackend();
  ~CudaBackend() override;

  std::string_view name() const override { return name_; }
  DeviceKind device() const override { return DeviceKind::kCuda; }
  const Allocator& allocator() const override;
  const Allocator& staging_allocator() const override;
  DType activation_dtype(DType weight_dtype) const override { return weight_dtype; }
  std::string_view attention_kernel(DType activations, DType cache, std::int64_t head_dim) const override;
  DType normed_matrix_dtype(DType checkpoint_dtype) const override {
    return checkpoint_dtype == DType::kBFloat16 ? DType::kFloat16 : checkpoint_dtype;
  }
  Stream main_stream() const override { return {.handle = stream_}; }
  void synchronize(Stream stream) const override;
  DeviceEvent make_event() const override;
  void record(DeviceEvent event, Stream stream) const override;
  void wait(DeviceEvent event) const override;
  void destroy(DeviceEvent event) const override;
  std::int64_t free_memory_bytes() const override;

  bool has_graphs() const override { return true; }
  void begin_capture(Stream stream) const override;
  Graph end_capture(Stream stream) const override;
  void launch(Graph graph, Stream stream) const override;
  double timed_launch(Graph graph, Stream stream) const override;
  void release(Graph graph) const override;

  Matrix allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const override;
  void fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const override;
  bool fill_random(Matrix& matrix, std::int64_t row_begin, std::int64_t row_count, std::uint64_t seed,
                   float limit) const override;
  bool merges_matrices() const override { return true; }
  Matrix concat_rows(const Matrix& a, const Matrix& b) const override;
  Matrix concat_columns(const Matrix& a, const Matrix& b) const override;
  void copy_to_device(const Tensor& host, const Tensor& device) const override;
  void copy_to_host(const Tensor& device, const Tensor& host) const override;
  void upload(Stream stream, const Tensor& host, const Tensor& device) const override;
  void download(Stream stream, const Tensor& device, const Tensor& host) const override;
  void copy(Stream stream, const Tensor& from, const Tensor& to) const override;
  void fill_bytes(Stream stream, const Tensor& tensor, std::uint8_t value) const override;

  void matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
              const Tensor& out) const override;
  void matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, Activation kind,
                        const Tensor& out) const override;
  void embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                 const Tensor& out) const override;
  void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out) const override;
  void layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                  const Tensor& out) const override;
  void head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) const override;
  void rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
              const Tensor& x) const override;
  void write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots, const Tensor& key_cache,
                   const Tensor& value_cache) const override;
  void rotary_write_cache(Context& ctx, const RotaryWriteInput& in) const override;
  void attention(Context& ctx, const AttentionInput& in, const Tensor& out) const override;
  void activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const override;
  void gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const override;
  void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const override;
  void mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const override;
  void scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const override;
  void gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) const override;
  void lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                const Tensor& out) const override;
  bool linear(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
              const LoraBatch& batch, std::span<const LoraInput> inputs, const Tensor& out) const override;
  void sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const override;
  void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                   const RankingOutput& out) const override;
  void add_biases(Context& ctx, const Tensor& begin, const Tensor& biases, const Tensor& logits) const override;
  void add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits) const override;
  void count_sampled(Context& ctx, const Tensor& tokens, const Tensor& count_slot,
                     const Tensor& token_counts) const override;
  void take_sampled(Context& ctx, const Tensor& sampled, const Tensor& source_rows, const Tensor& ids) const override;
  void count_history(Context& ctx, const Tensor& history, std::int64_t prompt_length,
                     const Tensor& counts) const override;

 private:
  std::string name_;
  cudaStream_t stream_ = nullptr;       // of steps
  cudaStream_t load_stream_ = nullptr;  // of weights and adapters
  cudaStream_t side_stream_ = nullptr;  // of what runs beside a product in a step
  cudaEvent_t side_begin_ = nullptr;    // both: steps come from one thread, and each use is queued before the next
  cudaEvent_t side_end_ = nullptr;
  int multiprocessors_ = 0;
  Buffer attention_tickets_;   // see AttentionArgs
  bool has_clusters_ = false;  // thread block clusters: sm_90 and later
  std::unique_ptr<MatmulPlans> matmul_plans_;
  std::unique_ptr<WeightUpload> weight_upload_;
};

}  // namespace shoal::cuda
