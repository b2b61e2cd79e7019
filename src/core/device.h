// Device kinds and the opaque handles that a backend makes, so that engine and dist can hold them
// without naming CUDA. Used by ops, engine, dist.
#pragma once

#include <cstdint>

namespace shoal {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// An ordered queue of device work. The CPU backend runs everything at once and leaves it null.
struct Stream {
  void* handle = nullptr;
};

}  // namespace shoal
