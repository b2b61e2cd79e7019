// The two files of an adapter, as PEFT names them. Used inside this room.
#pragma once

namespace shoal {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

}  // namespace shoal
