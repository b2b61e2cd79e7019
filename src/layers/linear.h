// Linear: the one place that knows how weights are stored, how they are split over ranks, and how the LoRA deltas of
// mixed adapters join the base product. Used by Attention, Mlp and the models.
#pragma once

#include <string>
#include <vector>

#include "layers/load_context.h"
#include "lora/adapter_batch.h"
#include "weights/row_order.h"

namespace shoal {

// One named weight of a fused linear layer: q_proj of q|k|v, gate_proj of gate|up. Also what LoRA targets.
struct LinearPart {
  std::string name;  // module path, without ".weight"
  std::int64_t out_features = 0;
  std::vector<RowRange> row_order = {};  // rows of the file in our order; empty: as they are
};

enum class LinearSplit : std::uint8_t {
  kColumn,  // outputs are spread over ranks; reads a norm
  kRow,     // inputs are spread over ranks; outputs are summed
};

enum class Bias : std::uint8_t { kNone, kPresent };

struct LinearOptions {
  LinearSplit split = LinearSplit::kColumn;
  Bias bias = Bias::kNone;
  Orientation orientation = Orientation::kOutIn;  // of the file; Conv1D checkpoints hold [in, out]
};

class Linear {
 public:
  Linear() = default;
  // Reads `<part>.weight` (and `.bias`) of each part into one matrix [sum of out_features, in_features].
  Linear(LoadContext& load, std::vector<LinearPart> parts, std::int64_t in_features, LinearOptions options);

  // x W^T + bias + LoRA: x [tokens, in_features] -> [tokens, out_features] float32, from the arena: what
  // reads it rounds once, after deltas have joined and angles have turned.
  Tensor forward(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data) const;
  // out = f(x W^T + bias + LoRA): out [tokens, out_features] activations of what reads it. For layers whose outputs are
  // spread.
  void forward_activated(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data, Activation kind,
                         const Tensor& out) const;
  // residual += x W^T + bias + LoRA, reduced over ranks first where the inputs are spread.
  void forward_add(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data, const Tensor& residual) const;
  // The same without the reduction: partial += this rank's share. For layers that reduce once for several products.
  void forward_add_partial(Context& ctx, const Tensor& x, const AdapterBatchData& adapter_data,
                           const Tensor& partial) const;

  // Both layers over one input: the outputs of `other` follow ours. For backends that merge matrices.
  void append_outputs(const Backend& backend, Linear other);
  // The sum of both over [our input | its input].
  void append_inputs(const Backend& backend, Linear other);

  std::int64_t in_features() const { return weight_.cols; }
  std::int64_t out_features() const { return weight_.rows; }
  DType in_dtype(const Backend& backend) const { return backend.activation_dtype(weight_.dtype); }

 private:
  void apply(Context& ctx, const Tensor& x, const LoraBatch& lora, MatmulOutput mode, const Tensor& out) const;

  Matrix weight_;                       // [out_features, in_features]
  Vector bias_;                         // float32 [out_features] or none
  std::vector<LoraInput> lora_inputs_;  // one, unless inputs were appended
  const Communicator* communicator_ = nullptr;
  LinearSplit split_ = LinearSplit::kColumn;
};

}  // namespace shoal
