// Mlp: the feed-forward part of a block, gated or plain. Used by the models and ParallelBlock.
#pragma once

#include "layers/forward_input.h"
#include "layers/linear.h"
#include "ops/modes.h"

namespace shoal {

enum class MlpKind : std::uint8_t {
  kGated,  // down(f(gate(x)) * up(x)), `up` being the fused gate | up
  kPlain,  // down(f(up(x)))
};

class Mlp {
 public:
  Mlp(Linear up, Linear down, MlpKind kind, Activation activation);

  // residual += mlp(x): x, residual [tokens, hidden] activations.
  void forward_add(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& residual) const;
  // The same before the reduction over ranks, for layers that reduce once for several products.
  void forward_add_partial(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& partial) const;

 private:
  // -> [tokens, intermediate] activations, from the arena
  Tensor activate(Context& ctx, const ForwardInput& in, const Tensor& x) const;

  Linear up_;
  Linear down_;
  MlpKind kind_;
  Activation activation_;
};

// The activation that a config names: "silu", "gelu", "gelu_new", ...; nullopt for others.
std::optional<Activation> activation_from_name(std::string_view name);

}  // namespace shoal
