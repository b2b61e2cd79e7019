#include "models/bskcn.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "ops/backend.h"
#include "ops/elementwise.h"

namespace shoal {
namespace {

bool holds(const std::vector<std::int64_t>& layers, std::int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

}  // namespace

Bskcn::Bskcn(const ConfigReader& config, std::int64_t num_layers) {
  bool any = false;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string save_key = fmt::format("bskcn_{}", i + 1);
    const std::string mix_key = fmt::format("bskcn_{}", i + 3);
    save_[i] = config.optional_int_list(save_key);
    mix_[i] = config.optional_int_list(mix_key);
    for (const std::string& key : {save_key, mix_key}) {
      for (const std::int64_t layer : config.optional_int_list(key)) {
        if (layer < 0 || layer >= num_layers) config.refuse(key, fmt::format("layers below {}", num_layers));
        any = true;
      }
    }
    for (const std::int64_t layer : mix_[i]) {
      const bool saved = std::any_of(save_[i].begin(), save_[i].end(), [&](auto j) { return j <= layer; });
      if (!saved) config.refuse(mix_key, fmt::format("no mix before the first layer of {}", save_key));
    }
  }
  const std::vector<double> weights = config.optional_float_list("bskcn_tv");
  if (any && weights.size() < 2) config.refuse("bskcn_tv", "two numbers, since the bskcn lists name layers");
  if (any) weight_ = static_cast<float>(weights[1]);
}

void Bskcn::apply(Context& ctx, std::int64_t layer, const Tensor& hidden, Saved& saved) const {
  for (std::size_t i = 0; i < 2; ++i) {
    if (!holds(save_[i], layer)) continue;
    if (!saved[i].defined()) saved[i] = ctx.arena.take(hidden.dtype(), {hidden.dim(0), hidden.dim(1)});
    ops::scale(ctx, hidden, 1.0F, saved[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    if (holds(mix_[i], layer)) ops::mix(ctx, saved[i], hidden, weight_, hidden);
  }
}

}  // namespace shoal
