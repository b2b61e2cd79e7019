#include "scheduler/adapter_queue.h"

#include <optional>
#include <utility>

namespace shoal {

void AdapterQueue::take_ready(Clock::time_point now, std::int64_t room, Sequences& waiting) {
  std::optional<Clock::time_point> blocked_since;
  for (auto& sequence : sequences_) {
    const bool has_room = std::ssize(waiting) < room || (!waiting.empty() && runs_before(*sequence, *waiting.back()));
    if (!has_room) break;
    const TierState state = sequence->pin.state();
    if (state == TierState::kNoRoom && !blocked_since) {
      if (!sequence->no_room_since) sequence->no_room_since = now;
      blocked_since = *sequence->no_room_since;
    }
    const bool is_base = !sequence->request.adapter.has_value();
    const bool adapter_passes = state == TierState::kInUse && blocked_since && now - *blocked_since < cycle_time_;
    if (blocked_since && !is_base && !adapter_passes) continue;
    if (state != TierState::kOnDevice && state != TierState::kInUse) continue;
    if (!sequence->pin.pin()) continue;  // it left between the two calls
    sequence->no_room_since.reset();
    sequence->prefix_key.adapter = sequence->pin.pinned().identity;
    insert_in_order(waiting, std::move(sequence));
  }
  std::erase(sequences_, nullptr);
}

}  // namespace shoal
