#include "layers/norm.h"

#include "ops/norm.h"

namespace shoal {

Norm::Norm(LoadContext& load, const std::string& name, std::int64_t hidden, NormOptions options)
    : options_(options), out_dtype_(load.backend.activation_dtype(load.dtype)) {
  weight_ = Vector::load(load, name + ".weight", {hidden});
  if (options.kind == NormKind::kLayer) bias_ = Vector::load(load, name + ".bias", {hidden});
}

Tensor Norm::forward(Context& ctx, const Tensor& x) const {
  const Tensor out = ctx.arena.take(out_dtype_, {x.dim(0), x.dim(1)});
  if (options_.kind == NormKind::kRms) {
    ops::rms_norm(ctx, x, weight_.values, options_.epsilon, out);
  } else {
    ops::layer_norm(ctx, x, weight_.values, bias_.values, options_.epsilon, out);
  }
  return out;
}

}  // namespace shoal
