#include "engine/pin_adapter.h"

#include <fmt/core.h>

namespace shoal {

Result<HeldAdapter> pin_when_ready(Engine& engine, Wakeup& wakeup, const AdapterKey& key, std::int64_t arrival) {
  const AdapterTicket ticket =
      engine.want_adapter(key, engine.adapter_version(key), {.priority = 0, .arrival = arrival});
  TierState state = engine.adapter_state(ticket);
  for (; state == TierState::kMoving; state = engine.adapter_state(ticket)) wakeup.wait();
  if (state == TierState::kOnDevice || state == TierState::kInUse) {
    return HeldAdapter{.ticket = ticket, .adapter = engine.pin_adapter(ticket).value()};
  }
  Error error = state == TierState::kFailed
                    ? engine.adapter_error(ticket)
                    : Error{ErrorCode::kAdapterInvalid,
                            fmt::format("{} finds no room beside the adapters that are in use", key.id)};
  engine.release_adapter(ticket);
  return error;
}

}  // namespace shoal
