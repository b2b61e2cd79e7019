#include "layers/linear.h"

#include "core/result.h"
#include "ops/elementwise.h"
#include "ops/lora.h"
#include "ops/matmul.h"

namespace shoal {
namespace {

// The bias of every part one after the other, in our row order.
Vector load_bias(LoadContext& load, const std::vector<LinearPart>& parts, std::int64_t out_features) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(out_features));
  for (const LinearPart& part : parts) {
    const std::vector<float> part_values =
        load.weights.read_vector(part.name + ".bias", part.out_features, part.row_order);
    values.insert(values.end(), part_values.begin(), part_values.end());
  }
  return Vector::from_host(load.backend, values, {out_features});
}

}  // namespace

Linear::Linear(LoadContext& load, std::vector<LinearPart> parts, std::int64_t in_features, LinearOptions options)
    : communicator_(&load.communicator), split_(options.split) {
  CHECK_EQ(load.communicator.size(), 1);
  std::int64_t out_features = 0;
  for (const LinearPart& part : parts) {
    const std::int32_t target_id = load.lora_targets.add({.path = part.name,
                                                          .in_features = in_features,
                                                          .out_features = part.out_features,
                                                          .row_order = part.row_order});
    lora_parts_.push_back({.target_id = target_id, .column_begin = out_features, .column_count = part.out_features});
    out_features += part.out_features;
  }
  weight_ = load.backend.allocate_matrix(load.dtype, out_features, in_features);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const MatrixRequest request{.name = parts[i].name + ".weight",
                                .rows = parts[i].out_features,
                                .cols = in_features,
                                .orientation = options.orientation,
                                .row_ranges = parts[i].row_order};
    load_rows(load, weight_, lora_parts_[i].column_begin, request);
  }
  if (options.bias == Bias::kPresent) bias_ = load_bias(load, parts, out_features);
}

void Linear::apply(Context& ctx, const Tensor& x, const LoraBatch& lora, MatmulOutput mode, const Tensor& out) const {
  ops::matmul(ctx, x, weight_, bias_.values, mode, out);
  if (!lora.empty()) ops::lora_add(ctx, x, lora, lora_parts_, out);
}

Tensor Linear::forward(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data) const {
  const Tensor out = ctx.arena.take(x.dtype(), {x.dim(0), weight_.rows});
  apply(ctx, x, adapter_data.tokens, MatmulOutput::kOverwrite, out);
  if (split_ == LinearSplit::kRow) communicator_->all_reduce(ctx.stream, out);
  return out;
}

void Linear::forward_add(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data,
                         const Tensor& residual) const {
  if (communicator_->size() == 1) {
    apply(ctx, x, adapter_data.tokens, MatmulOutput::kAccumulate, residual);
    return;
  }
  const Arena::Scope scope(ctx.arena);
  ops::add(ctx, residual, forward(ctx, x, adapter_data), residual);
}

void Linear::forward_add_partial(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data,
                                 const Tensor& partial) const {
  apply(ctx, x, adapter_data.tokens, MatmulOutput::kAccumulate, partial);
}

}  // namespace shoal
