// CpuBackend: threads and memory around the kernel table of one instruction set.
// Used by make_cpu_backend() alone.
#pragma once

#include <string>

#include "core/thread_pool.h"
#include "ops/backend.h"
#include "ops/cpu/kernels.h"

namespace shoal::cpu {

Element element_of(DType dtype);

// Matrices are packed in panels of 16 rows, the last one filled up with zeros: [panel][k][16] float32 or float16,
// [panel][k / 2][16][2] bfloat16, so that one vector load serves 16 outputs and a pair of k's stays together.
// No output of any op depends on the other rows of its batch or on the number of threads.
class CpuBackend final : public Backend {
 public:
  CpuBackend(std::string_view isa, const KernelTable& kernels, ThreadPool& pool);

  std::string_view name() const override { return name_; }
  DeviceKind device() const override { return DeviceKind::kCpu; }
  const Allocator& allocator() const override { return host_allocator(); }
  DType activation_dtype(DType) const override { return DType::kFloat32; }

  Matrix allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const override;
  void fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const override;
  void copy_to_device(const Tensor& host, const Tensor& device) const override;
  void copy_to_host(const Tensor& device, const Tensor& host) const override;

  void matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
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
  void attention(Context& ctx, const AttentionInput& in, const Tensor& out) const override;
  void activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const override;
  void gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const override;
  void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const override;
  void mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const override;
  void scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const override;
  void gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) const override;
  void lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                const Tensor& out) const override;
  void sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const override;
  void add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits) const override;
  void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                   const RankingOutput& out) const override;

 private:
  std::string name_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
};

}  // namespace shoal::cpu
