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

  // What lies between the two products: up float32 [tokens, intermediate, or twice that for gate | up],
  // out [tokens, intermediate] activations.
  void activate(Context& ctx, const Tensor& up, const Tensor& out) const;
  std::int64_t intermediate() const { return intermediate_; }

  // The products, for a layer that merges them with others; what is left activates.
  Linear take_up() { return std::move(up_); }
  Linear take_down() { return std::move(down_); }

 private:
  // -> [tokens, intermediate] activations, from the arena
  Tensor activated(Context& ctx, const ForwardInput& in, const Tensor& x) const;

  Linear up_;
  Linear down_;
  MlpKind kind_;
  Activation activation_;
  std::int64_t intermediate_;
};

// The activation that a config names: "silu", "gelu", "gelu_new", ...; nullopt for others.
std::optional<Activation> activation_from_name(std::string_view name);

}  // namespace shoal
