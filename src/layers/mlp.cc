#include "layers/mlp.h"

#include "ops/elementwise.h"

namespace shoal {

Mlp::Mlp(Linear up, Linear down, MlpKind kind, Activation activation)
    : up_(std::move(up)),
      down_(std::move(down)),
      kind_(kind),
      activation_(activation),
      intermediate_(down_.in_features()) {
  CHECK_EQ(up_.out_features(), down_.in_features() * (kind == MlpKind::kGated ? 2 : 1));
}

void Mlp::forward_add(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& residual) const {
  const Arena::Scope scope(ctx.arena);
  down_.forward_add(ctx, activated(ctx, in, x), in.adapter_data, residual);
}

void Mlp::forward_add_partial(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& partial) const {
  const Arena::Scope scope(ctx.arena);
  down_.forward_add_partial(ctx, activated(ctx, in, x), in.adapter_data, partial);
}

Tensor Mlp::activated(Context& ctx, const ForwardInput& in, const Tensor& x) const {
  const Tensor out = ctx.arena.take(down_.in_dtype(ctx.backend), {x.dim(0), intermediate_});
  if (kind_ == MlpKind::kPlain) {
    up_.forward_activated(ctx, x, in.adapter_data, activation_, out);
  } else {
    const Arena::Scope scope(ctx.arena);
    ops::gated_activation(ctx, activation_, up_.forward(ctx, x, in.adapter_data), out);
  }
  return out;
}

void Mlp::activate(Context& ctx, const Tensor& up, const Tensor& out) const {
  if (kind_ == MlpKind::kPlain) {
    ops::activation(ctx, activation_, up, out);
  } else {
    ops::gated_activation(ctx, activation_, up, out);
  }
}

std::optional<Activation> activation_from_name(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGeluErf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return std::nullopt;
}

}  // namespace shoal
