// FaultyBackend: a right backend of which single operations are replaced by wrong ones. Used by the fault test.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "ops/backend.h"

namespace shoal {

// The operations that a fault replaces, with the parameters of Backend; those left empty stay right.
struct OpFaults {
  std::function<void(Context&, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                     const Tensor& out)>
      matmul = {};
  std::function<void(Context&, const Tensor& ids, const Matrix& table, EmbeddingOutput mode, const Tensor& out)>
      embedding = {};
  std::function<void(Context&, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out)> rms_norm = {};
  std::function<void(Context&, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                     const Tensor& out)>
      layer_norm = {};
  std::function<void(Context&, const Tensor& weight, float epsilon, const Tensor& x)> head_layer_norm = {};
  std::function<void(Context&, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style, const Tensor& x)>
      rotary = {};
  std::function<void(Context&, const Tensor& key, const Tensor& value, const Tensor& slots, const Tensor& key_cache,
                     const Tensor& value_cache)>
      write_cache = {};
  std::function<void(Context&, const AttentionInput& in, const Tensor& out)> attention = {};
  std::function<void(Context&, const Tensor& a, const Tensor& b, float t, const Tensor& out)> mix = {};
  std::function<void(Context&, const Tensor& x, float factor, const Tensor& out)> scale = {};
  std::function<void(Context&, const Tensor& x, const Tensor& indices, const Tensor& out)> gather_rows = {};
  std::function<void(Context&, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                     const Tensor& out)>
      lora_add = {};
};

class FaultyBackend final : public Backend {
 public:
  // `right` outlives this backend.
  FaultyBackend(const Backend& right, OpFaults faults);

  std::string_view name() const override { return "faulty"; }
  DeviceKind device() const override { return right_.device(); }
  const Allocator& allocator() const override { return right_.allocator(); }
  DType activation_dtype(DType weight_dtype) const override { return right_.activation_dtype(weight_dtype); }

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

 private:
  const Backend& right_;
  OpFaults faults_;
};

}  // namespace shoal
