// BSKCN: Solar's mixing of earlier residual streams. Used by solar.cc.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layers/forward_input.h"
#include "weights/config_reader.h"

namespace shoal {

// Before layer i the residual stream is saved (lists 1 and 2) and an earlier one is mixed in (lists 3 and 4).
class Bskcn {
 public:
  // The saved streams of one forward: [tokens, hidden] activations, taken from the arena at the first save.
  using Saved = std::array<Tensor, 2>;

  // Empty lists where the config has none, as in plain Llama; a list that cannot work is refused.
  Bskcn(const ConfigReader& config, std::int64_t num_layers);

  // hidden [tokens, hidden] is the stream that enters `layer`. Saves come before mixes, both on the whole stream:
  // hidden = saved * t + hidden * (1 - t).
  void apply(Context& ctx, std::int64_t layer, const Tensor& hidden, Saved& saved) const;

 private:
  using LayerList = std::vector<std::int64_t>;

  std::array<LayerList, 2> save_;  // bskcn_1, bskcn_2
  std::array<LayerList, 2> mix_;   // bskcn_3, bskcn_4: mixes what the list of the same index saved last
  float weight_ = 0.0F;            // bskcn_tv[1], of the saved stream; the first entry is for training
};

}  // namespace shoal
