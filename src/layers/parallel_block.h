// ParallelBlock: attention and MLP side by side, one residual add, one reduction over ranks. A layer of its own, so
// that a backend may fuse or split it without touching a model. Used by rw.cc and cohere.cc.
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"

namespace shoal {

class ParallelBlock {
 public:
  ParallelBlock(Attention attention, Mlp mlp, const Communicator& communicator);

  // residual += attention(attention_x) + mlp(mlp_x); the two inputs are one tensor where one norm feeds both.
  // All [tokens, hidden] activations.
  void forward_add(Context& ctx, const ForwardInput& in, const Tensor& attention_x, const Tensor& mlp_x,
                   const Tensor& residual) const;

  // The parts, for families whose config may also run them one after the other.
  const Attention& attention() const { return attention_; }
  const Mlp& mlp() const { return mlp_; }

 private:
  Attention attention_;
  Mlp mlp_;
  const Communicator& communicator_;
};

}  // namespace shoal
