// place_in: a place for load_adapter in memory of its own. Used by tests.
#pragma once

#include "core/buffer.h"
#include "lora/adapter_weights.h"

namespace shoal {

// `memory` outlives what is loaded.
inline PlaceAdapter place_in(Buffer& memory) {
  return [&memory](std::int64_t num_bytes) {
    memory = Buffer(host_allocator(), num_bytes);
    return static_cast<std::byte*>(memory.raw());
  };
}

}  // namespace shoal
