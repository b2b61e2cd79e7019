// pin_when_ready: one adapter on the device, for callers that have nothing to do meanwhile. Used by cli/ and by tests.
#pragma once

#include "core/result.h"
#include "core/wakeup.h"
#include "engine/engine.h"

namespace shoal {

struct HeldAdapter {
  AdapterTicket ticket;  // to be released
  PinnedAdapter adapter;
};

// Waits; `wakeup` is the engine's. Calls for one adapter give different `arrival`s. Nothing is held after an error.
Result<HeldAdapter> pin_when_ready(Engine& engine, Wakeup& wakeup, const AdapterKey& key, std::int64_t arrival);

}  // namespace shoal
