#include "layers/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/result.h"
#include "ops/norm.h"

namespace shoal {
namespace {

constexpr float kLargestFloat16 = 65504.0F;

float largest(std::span<const float> values) {
  float most = 0.0F;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

// A normalized value is at most sqrt(hidden): then it is certain at load time that float16 holds what comes out.
void check_fits_float16(const std::string& name, std::span<const float> weight, std::span<const float> bias) {
  const float most = std::sqrt(static_cast<float>(weight.size())) * largest(weight) + largest(bias);
  if (most <= kLargestFloat16) return;
  throw StartError(
      fmt::format("{}: its outputs may reach {:g}, and float16 ends at {:g}", name, most, kLargestFloat16));
}

}  // namespace

Norm::Norm(LoadContext& load, const std::string& name, std::int64_t hidden, NormOptions options)
    : options_(options), out_dtype_(load.backend.activation_dtype(load.normed_dtype())) {
  const std::vector<float> weight = load.weights.read_floats(name + ".weight", {hidden});
  std::vector<float> bias;
  if (options.kind == NormKind::kLayer) bias = load.weights.read_floats(name + ".bias", {hidden});
  if (out_dtype_ == DType::kFloat16) check_fits_float16(name, weight, bias);
  weight_ = Vector::from_host(load.backend, weight, {hidden});
  if (!bias.empty()) bias_ = Vector::from_host(load.backend, bias, {hidden});
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
