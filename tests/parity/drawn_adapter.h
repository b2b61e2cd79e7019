// DrawnAdapter: a LoRA adapter over some linear layers of a drawn model, as PEFT saves it, and the same change merged
// into the model's weights. Used by the property test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parity/drawn_model.h"

namespace shoal {

// What PEFT would add to one weight: scale x B A.
struct DrawnDelta {
  DrawnLinear linear;
  std::int64_t rank = 0;
  double scale = 0.0;
};

struct DrawnAdapter {
  nlohmann::json config;
  DrawnTensors tensors;
  std::vector<DrawnDelta> deltas;
  std::int64_t rank = 0;  // of most modules
  DType file_dtype = DType::kFloat32;

  // One line for failure messages.
  std::string describe() const;
};

DrawnAdapter draw_adapter(const DrawnModel& model, std::int64_t rank, Draw& draw);
// adapter_config.json and adapter_model.safetensors into a folder that exists.
void write_adapter(const DrawnAdapter& adapter, const std::string& folder);

// The model with W + scale x B A in place of each changed W: summed in double, kept in float32. A tied head that the
// adapter changes becomes a weight of its own.
DrawnModel merge(const DrawnModel& model, const DrawnAdapter& adapter);

}  // namespace shoal
