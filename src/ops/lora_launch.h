// How LoRA launches depend on a step, for whoever keeps launches to repeat them. Used by the CUDA kernels and by
// ModelEngine's graphs.
#pragma once

#include <cstdint>

namespace shoal {

// Batches whose largest groups round up to the same multiple of this many tokens are launched alike.
constexpr std::int64_t kLoraTokenStep = 4;

}  // namespace shoal
