// AdapterQueue: requests that do not hold their adapter yet, and the rule by which they get it. Used by the scheduler's
// loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "scheduler/sequence.h"

namespace shoal {

class AdapterQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AdapterQueue(std::chrono::milliseconds cycle_time) : cycle_time_(cycle_time) {}

  // Its pin wants the adapter already, so that this loads while the request waits.
  void add(std::unique_ptr<Sequence> sequence) { insert_in_order(sequences_, std::move(sequence)); }

  // Pins the adapters of those who may run next and moves them into `waiting`, until it holds `room` or they would run
  // after all that are in it. Adapters stay unpinned for as long as that, so that they can make way for others.
  // In order, but for those whose adapter is still on its way: the others pass them. An adapter that finds no room
  // beside the pinned ones stops whoever needs an adapter and comes later; only those whose adapter is in use anyway
  // pass, and they only for the cycle time. Then what is in use runs out, and the one that waits gets its room.
  void take_ready(Clock::time_point now, std::int64_t room, Sequences& waiting);

  Sequences& sequences() { return sequences_; }  // first who runs first
  const Sequences& sequences() const { return sequences_; }

 private:
  std::chrono::milliseconds cycle_time_;
  Sequences sequences_;
};

}  // namespace shoal
