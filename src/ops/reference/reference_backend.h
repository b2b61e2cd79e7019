// ReferenceBackend: every op as a plain loop on one thread, sums in double: the oracle that the kernels are tested
// against, and the fallback of machines that no kernel set fits. Used by make_reference_backend() alone.
#pragma once

#include "ops/backend.h"

namespace shoal {

// Matrices are row-major in their own dtype. No result depends on other rows of its batch.
class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
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
  void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                   const RankingOutput& out) const override;
};

}  // namespace shoal
