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

// A mark in a stream's work, to wait for no more than what was queued before it. Made and destroyed by the backend.
struct DeviceEvent {
  void* handle = nullptr;
};

// Work captured from a stream, to be queued again at the cost of one launch. Made and released by the backend.
struct Graph {
  void* handle = nullptr;
};

}  // namespace shoal
