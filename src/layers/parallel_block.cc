#include "layers/parallel_block.h"

#include "ops/elementwise.h"

namespace shoal {

ParallelBlock::ParallelBlock(LoadContext& load, Attention attention, Mlp mlp, ParallelInputs inputs)
    : attention_(std::move(attention)), mlp_(std::move(mlp)), communicator_(load.communicator) {
  const bool one_rank = communicator_.size() == 1;
  if (inputs == ParallelInputs::kOne && one_rank && load.backend.merges_matrices()) merge(load.backend);
}

void ParallelBlock::merge(const Backend& backend) {
  merged_ = true;
  input_ = attention_.take_qkv();
  qkv_width_ = input_.out_features();
  input_.append_outputs(backend, mlp_.take_up());
  output_ = attention_.take_dense();
  output_.append_inputs(backend, mlp_.take_down());
}

void ParallelBlock::forward_add_merged(Context& ctx, const ForwardInput& in, const Tensor& x,
                                       const Tensor& residual) const {
  const Arena::Scope scope(ctx.arena);
  const Tensor projected = input_.forward(ctx, x, in.adapter_data);
  const Tensor inner = ctx.arena.take(output_.in_dtype(ctx.backend), {x.dim(0), output_.in_features()});
  attention_.attend(ctx, in, projected.columns(0, qkv_width_), inner.columns(0, attention_.query_width()));
  mlp_.activate(ctx, projected.columns(qkv_width_, input_.out_features() - qkv_width_),
                inner.columns(attention_.query_width(), mlp_.intermediate()));
  output_.forward_add(ctx, inner, in.adapter_data, residual);
}

void ParallelBlock::forward_add(Context& ctx, const ForwardInput& in, const Tensor& attention_x, const Tensor& mlp_x,
                                const Tensor& residual) const {
  if (merged_) {
    CHECK(attention_x.raw() == mlp_x.raw());
    forward_add_merged(ctx, in, attention_x, residual);
    return;
  }
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
