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

// The values on the host; `count` zeros where there are none.
std::vector<float> host_values(const Backend& backend, const Vector& vector, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count), 0.0F);
  if (vector.values.defined()) backend.copy_to_host(vector.values, Tensor(values.data(), DType::kFloat32, {count}));
  return values;
}

}  // namespace

Linear::Linear(LoadContext& load, std::vector<LinearPart> parts, std::int64_t in_features, LinearOptions options)
    : communicator_(&load.communicator), split_(options.split) {
  CHECK_EQ(load.communicator.size(), 1);
  std::int64_t out_features = 0;
  std::vector<LoraPart>& lora_parts =
      lora_inputs_.emplace_back(LoraInput{.begin = 0, .count = in_features, .parts = {}}).parts;
  for (const LinearPart& part : parts) {
    const std::int32_t target_id = load.lora_targets.add({.path = part.name,
                                                          .in_features = in_features,
                                                          .out_features = part.out_features,
                                                          .row_order = part.row_order});
    lora_parts.push_back({.target_id = target_id, .column_begin = out_features, .column_count = part.out_features});
    out_features += part.out_features;
  }
  // Column-split layers read a norm; row-split ones what attention or an activation makes of that.
  const DType dtype = split_ == LinearSplit::kColumn ? load.normed_dtype() : load.dtype;
  weight_ = load.backend.allocate_matrix(dtype, out_features, in_features);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const MatrixRequest request{.name = parts[i].name + ".weight",
                                .rows = parts[i].out_features,
                                .cols = in_features,
                                .orientation = options.orientation,
                                .row_ranges = parts[i].row_order};
    load_rows(load, weight_, lora_parts[i].column_begin, request);
  }
  if (options.bias == Bias::kPresent) bias_ = load_bias(load, parts, out_features);
}

void Linear::append_outputs(const Backend& backend, Linear other) {
  CHECK(split_ == LinearSplit::kColumn && other.split_ == LinearSplit::kColumn);
  CHECK_EQ(other.lora_inputs_.size(), 1U);
  if (bias_.values.defined() || other.bias_.values.defined()) {
    std::vector<float> bias = host_values(backend, bias_, weight_.rows);
    const std::vector<float> more = host_values(backend, other.bias_, other.weight_.rows);
    bias.insert(bias.end(), more.begin(), more.end());
    bias_ = Vector::from_host(backend, bias, {std::ssize(bias)});
  }
  for (LoraPart part : other.lora_inputs_[0].parts) {
    part.column_begin += weight_.rows;
    lora_inputs_[0].parts.push_back(part);
  }
  weight_ = backend.concat_rows(weight_, other.weight_);
}

void Linear::append_inputs(const Backend& backend, Linear other) {
  CHECK(split_ == LinearSplit::kRow && other.split_ == LinearSplit::kRow);
  if (bias_.values.defined() || other.bias_.values.defined()) {
    std::vector<float> bias = host_values(backend, bias_, weight_.rows);
    const std::vector<float> more = host_values(backend, other.bias_, weight_.rows);
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] += more[i];
    bias_ = Vector::from_host(backend, bias, {std::ssize(bias)});
  }
  for (LoraInput input : other.lora_inputs_) {
    input.begin += weight_.cols;
    lora_inputs_.push_back(std::move(input));
  }
  weight_ = backend.concat_columns(weight_, other.weight_);
}

void Linear::apply(Context& ctx, const Tensor& x, const LoraBatch& lora, MatmulOutput mode, const Tensor& out) const {
  ops::linear(ctx, x, weight_, bias_.values, mode, lora, lora_inputs_, out);
}

Tensor Linear::forward(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data) const {
  const Tensor out = ctx.arena.take(DType::kFloat32, {x.dim(0), weight_.rows});
  apply(ctx, x, adapter_data.tokens, MatmulOutput::kOverwrite, out);
  if (split_ == LinearSplit::kRow) communicator_->all_reduce(ctx.stream, out);
  return out;
}

void Linear::forward_activated(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data, Activation kind,
                               const Tensor& out) const {
  CHECK(split_ == LinearSplit::kColumn);
  if (adapter_data.tokens.empty()) {
    ops::matmul_activated(ctx, x, weight_, bias_.values, kind, out);
    return;
  }
  const Arena::Scope scope(ctx.arena);
  const bool in_place = out.dtype() == DType::kFloat32;
  const Tensor product = in_place ? out : ctx.arena.take(DType::kFloat32, {x.dim(0), weight_.rows});
  apply(ctx, x, adapter_data.tokens, MatmulOutput::kOverwrite, product);
  ops::activation(ctx, kind, product, out);
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
