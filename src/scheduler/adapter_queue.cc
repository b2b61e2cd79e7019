#include "scheduler/adapter_queue.h"

#include <algorithm>
#include <utility>

namespace shoal {
namespace {

// Who is ready and yet passed by higher priorities again and again becomes one of them.
void promote_passed(Sequences& waiting, const Sequence& taken) {
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Sequence& passed = *waiting[i];
    if (passed.priority >= taken.priority || ++passed.times_passed < kMaxPassed) continue;
    passed.times_passed = 0;
    passed.priority = taken.priority;
    std::unique_ptr<Sequence> promoted = std::move(waiting[i]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    insert_in_order(waiting, std::move(promoted));
  }
}

}  // namespace

Sequence& AdapterQueue::add(std::unique_ptr<Sequence> sequence) {
  Sequence& added = *sequence;
  if (added.request.tenant != last_tenant_) {
    if (any_came_) last_change_ = added.timings.submitted;
    last_tenant_ = added.request.tenant;
  }
  any_came_ = true;
  queue_.add(std::move(sequence));
  return added;
}

void AdapterQueue::count_served(const Sequences& sequences) {
  for (const auto& sequence : sequences) {
    if (sequence->started()) queue_.note_start(*sequence);
    const std::int64_t num_new = sequence->num_generated() - sequence->num_charged;
    if (num_new == 0) continue;
    queue_.charge(*sequence, num_new);
    sequence->num_charged += num_new;
  }
}

void AdapterQueue::close(Sequence& sequence) {
  if (sequence.started()) queue_.note_start(sequence);
  const std::int64_t num_new = sequence.num_generated() - sequence.num_charged;
  if (num_new > 0) queue_.charge(sequence, num_new);
  queue_.close(sequence);
  if (!std::exchange(sequence.taken, false)) return;
  const auto taken = taken_.find(sequence.request.tenant);
  if (--taken->second == 0) taken_.erase(taken);
}

bool AdapterQueue::full(const Sequence& sequence, Clock::time_point now) const {
  if (!last_change_ || now - *last_change_ >= kTenantsStay) return false;
  const auto taken = taken_.find(sequence.request.tenant);
  return taken != taken_.end() && taken->second >= max_of_tenant_;
}

void AdapterQueue::take_ready(Clock::time_point now, std::int64_t room, Sequences& waiting) {
  std::optional<Blocked> blocked;
  queue_.walk({.ask =
                   [&](Sequence& sequence) {
                     const bool has_room =
                         std::ssize(waiting) < room || (!waiting.empty() && runs_before(sequence, *waiting.back()));
                     return has_room ? offer(sequence, now, blocked) : Offer::kStop;
                   },
               .give =
                   [&](std::unique_ptr<Sequence> sequence) {
                     promote_passed(waiting, *sequence);
                     sequence->taken = true;
                     ++taken_[sequence->request.tenant];
                     insert_in_order(waiting, std::move(sequence));
                   }});
}

Offer AdapterQueue::offer(Sequence& sequence, Clock::time_point now, std::optional<Blocked>& blocked) const {
  if (sequence.request.load_only || full(sequence, now)) return Offer::kPass;
  const TierState state = sequence.pin.state();
  if (state == TierState::kNoRoom && !blocked) {
    if (!sequence.no_room_since) sequence.no_room_since = now;
    blocked = {.since = *sequence.no_room_since, .place = sequence.place()};
  }
  if (state != TierState::kOnDevice && state != TierState::kInUse) return Offer::kPass;
  if (blocked && sequence.request.adapter.has_value()) {
    // Room goes by place, so one that has an earlier one got its own before, and must use it to give it back.
    const bool in_use_passes = state == TierState::kInUse && now - blocked->since < cycle_time_;
    const bool earlier_passes = state == TierState::kOnDevice && sequence.place() < blocked->place;
    if (!in_use_passes && !earlier_passes) return Offer::kPass;
  }
  if (!sequence.pin.pin()) return Offer::kPass;  // it left between the two calls
  sequence.no_room_since.reset();
  sequence.prefix_key.adapter = sequence.pin.pinned().identity;
  return Offer::kTake;
}

}  // namespace shoal
