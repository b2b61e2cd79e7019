// What every backend whose device is the host does alike.
#include "ops/backend.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

void copy_bytes(const Tensor& from, const Tensor& to) {
  CHECK(from.contiguous());
  CHECK(to.contiguous());
  CHECK_EQ(from.num_bytes(), to.num_bytes());
  if (from.num_bytes() > 0) std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(from.num_bytes()));
}

}  // namespace

void Backend::synchronize(Stream) const {}

bool Backend::fill_random(Matrix&, std::int64_t, std::int64_t, std::uint64_t, float) const { return false; }

Matrix Backend::concat_rows(const Matrix&, const Matrix&) const {
  CHECK(merges_matrices());
  return {};
}

Matrix Backend::concat_columns(const Matrix&, const Matrix&) const {
  CHECK(merges_matrices());
  return {};
}

void Backend::begin_capture(Stream) const { CHECK(has_graphs()); }

Graph Backend::end_capture(Stream) const {
  CHECK(has_graphs());
  return {};
}

void Backend::launch(Graph, Stream) const { CHECK(has_graphs()); }

double Backend::timed_launch(Graph, Stream) const {
  CHECK(has_graphs());
  return 0.0;
}

void Backend::release(Graph) const { CHECK(has_graphs()); }

void Backend::upload(Stream, const Tensor& host, const Tensor& device) const { copy_bytes(host, device); }

void Backend::download(Stream, const Tensor& device, const Tensor& host) const { copy_bytes(device, host); }

void Backend::copy(Stream, const Tensor& from, const Tensor& to) const { copy_bytes(from, to); }

void Backend::fill_bytes(Stream, const Tensor& tensor, std::uint8_t value) const {
  CHECK(tensor.contiguous());
  if (tensor.num_bytes() > 0) std::memset(tensor.raw(), value, static_cast<std::size_t>(tensor.num_bytes()));
}

void Backend::matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, Activation kind,
                               const Tensor& out) const {
  const Arena::Scope scope(ctx.arena);
  const bool in_place = out.dtype() == DType::kFloat32;
  const Tensor product = in_place ? out : ctx.arena.take(DType::kFloat32, {out.dim(0), out.dim(1)});
  matmul(ctx, x, weight, bias, MatmulOutput::kOverwrite, product);
  activation(ctx, kind, product, out);
}

void Backend::rotary_write_cache(Context& ctx, const RotaryWriteInput& in) const {
  rotary(ctx, in.positions, in.cos_sin, in.style, in.query);
  rotary(ctx, in.positions, in.cos_sin, in.style, in.key);
  write_cache(ctx, in.key, in.value, in.slots, in.key_cache, in.value_cache);
}

bool Backend::linear(Context&, const Tensor&, const Matrix&, const Tensor&, MatmulOutput, const LoraBatch&,
                     std::span<const LoraInput>, const Tensor&) const {
  return false;
}

void Backend::add_biases(Context&, const Tensor& begin, const Tensor& biases, const Tensor& logits) const {
  const auto* each = reinterpret_cast<const LogitBias*>(biases.data<std::uint8_t>());
  for (std::int64_t row = 0; row < logits.dim(0); ++row) {
    const std::int32_t* bounds = begin.data<std::int32_t>() + row;
    for (std::int32_t i = bounds[0]; i < bounds[1]; ++i) logits.row<float>(row)[each[i].id] += each[i].value;
  }
}

void Backend::add_watermark(Context&, const WatermarkInput& in, const Tensor& logits) const {
  for (std::int64_t row = 0; row < logits.dim(0); ++row) {
    const std::int64_t after = in.after.data<std::int64_t>()[row];
    if (after < 0) continue;
    add_watermark_to_row(in.ids.data<std::int64_t>()[after], in.gamma.data<float>()[row], in.delta.data<float>()[row],
                         0, logits.dim(1), logits.row<float>(row));
  }
}

void Backend::count_sampled(Context&, const Tensor& tokens, const Tensor& count_slot,
                            const Tensor& token_counts) const {
  for (std::int64_t row = 0; row < tokens.dim(0); ++row) {
    const std::int32_t slot = count_slot.data<std::int32_t>()[row];
    const std::int64_t token = tokens.data<std::int64_t>()[row];
    if (slot >= 0 && token >= 0) ++token_counts.row<std::int32_t>(slot)[token];
  }
}

void Backend::take_sampled(Context&, const Tensor& sampled, const Tensor& source_rows, const Tensor& ids) const {
  for (std::int64_t row = 0; row < source_rows.dim(0); ++row) {
    const std::int32_t source = source_rows.data<std::int32_t>()[row];
    if (source >= 0) ids.data<std::int64_t>()[row] = std::max<std::int64_t>(0, sampled.data<std::int64_t>()[source]);
  }
}

void Backend::count_history(Context&, const Tensor& history, std::int64_t prompt_length, const Tensor& counts) const {
  auto* count = counts.data<std::int32_t>();
  std::memset(count, 0, static_cast<std::size_t>(counts.num_bytes()));
  for (std::int64_t i = 0; i < history.dim(0); ++i) {
    const std::int64_t token = history.data<std::int64_t>()[i];
    if (token >= counts.dim(0)) continue;  // never sampled, so nothing to penalise
    if (i < prompt_length) {
      count[token] |= kSeenInPrompt;
    } else {
      ++count[token];
    }
  }
}

}  // namespace shoal
