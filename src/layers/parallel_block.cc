#include "layers/parallel_block.h"

#include "ops/elementwise.h"

namespace shoal {

ParallelBlock::ParallelBlock(Attention attention, Mlp mlp, const Communicator& communicator)
    : attention_(std::move(attention)), mlp_(std::move(mlp)), communicator_(communicator) {}

void ParallelBlock::forward_add(Context& ctx, const ForwardInput& in, const Tensor& attention_x, const Tensor& mlp_x,
                                const Tensor& residual) const {
  if (communicator_.size() == 1) {
    attention_.forward_add_partial(ctx, in, attention_x, residual);
    mlp_.forward_add_partial(ctx, in, mlp_x, residual);
    return;
  }
  // Both partial sums meet before the one reduction, so that neither overwrites the other's buffer.
  const Arena::Scope scope(ctx.arena);
  const Tensor partial = ctx.arena.take(residual.dtype(), {residual.dim(0), residual.dim(1)});
  ops::scale(ctx, residual, 1.0F / static_cast<float>(communicator_.size()), partial);
  attention_.forward_add_partial(ctx, in, attention_x, partial);
  mlp_.forward_add_partial(ctx, in, mlp_x, partial);
  communicator_.all_reduce(ctx.stream, partial);
  ops::scale(ctx, partial, 1.0F, residual);
}

}  // namespace shoal
