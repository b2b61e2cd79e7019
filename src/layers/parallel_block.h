// ParallelBlock: attention and MLP side by side, one residual add, one reduction over ranks. A layer of its own, so
// that a backend may fuse or split it without touching a model. Used by rw.cc and cohere.cc.
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"

namespace shoal {

// Whether one norm feeds attention and MLP alike.
enum class ParallelInputs : std::uint8_t { kOne, kTwo };

class ParallelBlock {
 public:
  ParallelBlock(LoadContext& load, Attention attention, Mlp mlp, ParallelInputs inputs);

  // residual += attention(attention_x) + mlp(mlp_x); one tensor for both with ParallelInputs::kOne.
  // Inputs [tokens, hidden] activations, residual [tokens, hidden].
  void forward_add(Context& ctx, const ForwardInput& in, const Tensor& attention_x, const Tensor& mlp_x,
                   const Tensor& residual) const;

  // The parts, for families whose config may also run them one after the other; not with kOne.
  const Attention& attention() const { return attention_; }
  const Mlp& mlp() const { return mlp_; }

 private:
  // The whole block as two wide products, [qkv | up] and [attention's | MLP's] output.
  void merge(const Backend& backend);
  void forward_add_merged(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& residual) const;

  Attention attention_;
  Mlp mlp_;
  const Communicator& communicator_;
  bool merged_ = false;
  Linear input_;   // merged: qkv, then up
  Linear output_;  // merged: over [attended | activated]
  std::int64_t qkv_width_ = 0;
};

}  // namespace shoal
