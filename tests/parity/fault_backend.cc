#include "parity/fault_backend.h"

#include <utility>

namespace shoal {

FaultyBackend::FaultyBackend(const Backend& right, OpFaults faults) : right_(right), faults_(std::move(faults)) {}

Matrix FaultyBackend::allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const {
  return right_.allocate_matrix(dtype, rows, cols);
}

void FaultyBackend::fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const {
  right_.fill_rows(matrix, row_begin, host_rows);
}

void FaultyBackend::copy_to_device(const Tensor& host, const Tensor& device) const {
  right_.copy_to_device(host, device);
}

void FaultyBackend::copy_to_host(const Tensor& device, const Tensor& host) const { right_.copy_to_host(device, host); }

void FaultyBackend::matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                           const Tensor& out) const {
  if (faults_.matmul) return faults_.matmul(ctx, x, weight, bias, mode, out);
  right_.matmul(ctx, x, weight, bias, mode, out);
}

void FaultyBackend::embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                              const Tensor& out) const {
  if (faults_.embedding) return faults_.embedding(ctx, ids, table, mode, out);
  right_.embedding(ctx, ids, table, mode, out);
}

void FaultyBackend::rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon,
                             const Tensor& out) const {
  if (faults_.rms_norm) return faults_.rms_norm(ctx, x, weight, epsilon, out);
  right_.rms_norm(ctx, x, weight, epsilon, out);
}

void FaultyBackend::layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                               const Tensor& out) const {
  if (faults_.layer_norm) return faults_.layer_norm(ctx, x, weight, bias, epsilon, out);
  right_.layer_norm(ctx, x, weight, bias, epsilon, out);
}

void FaultyBackend::head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) const {
  if (faults_.head_layer_norm) return faults_.head_layer_norm(ctx, weight, epsilon, x);
  right_.head_layer_norm(ctx, weight, epsilon, x);
}

void FaultyBackend::rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                           const Tensor& x) const {
  if (faults_.rotary) return faults_.rotary(ctx, positions, cos_sin, style, x);
  right_.rotary(ctx, positions, cos_sin, style, x);
}

void FaultyBackend::write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                                const Tensor& key_cache, const Tensor& value_cache) const {
  if (faults_.write_cache) return faults_.write_cache(ctx, key, value, slots, key_cache, value_cache);
  right_.write_cache(ctx, key, value, slots, key_cache, value_cache);
}

void FaultyBackend::attention(Context& ctx, const AttentionInput& in, const Tensor& out) const {
  if (faults_.attention) return faults_.attention(ctx, in, out);
  right_.attention(ctx, in, out);
}

void FaultyBackend::activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const {
  right_.activation(ctx, kind, x, out);
}

void FaultyBackend::gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const {
  right_.gated_activation(ctx, kind, gate_up, out);
}

void FaultyBackend::add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const {
  right_.add(ctx, a, b, out);
}

void FaultyBackend::mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const {
  if (faults_.mix) return faults_.mix(ctx, a, b, t, out);
  right_.mix(ctx, a, b, t, out);
}

void FaultyBackend::scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const {
  if (faults_.scale) return faults_.scale(ctx, x, factor, out);
  right_.scale(ctx, x, factor, out);
}

void FaultyBackend::gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) const {
  if (faults_.gather_rows) return faults_.gather_rows(ctx, x, indices, out);
  right_.gather_rows(ctx, x, indices, out);
}

void FaultyBackend::lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                             const Tensor& out) const {
  if (faults_.lora_add) return faults_.lora_add(ctx, x, batch, parts, out);
  right_.lora_add(ctx, x, batch, parts, out);
}

void FaultyBackend::sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const {
  right_.sample(ctx, in, out);
}

void FaultyBackend::rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                                const RankingOutput& out) const {
  right_.rank_logits(ctx, logits, columns, tokens, out);
}

}  // namespace shoal
