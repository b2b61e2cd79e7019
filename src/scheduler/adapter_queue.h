// AdapterQueue: requests that do not hold their adapter yet, and the rule by which they get it. Used by the scheduler's
// loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "scheduler/fair_queue.h"
#include "scheduler/sequence.h"

namespace shoal {

class AdapterQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AdapterQueue(std::chrono::milliseconds cycle_time) : cycle_time_(cycle_time) {}

  // Gives it its place. From here on it counts for its tenant and adapter, until close().
  Sequence& add(std::unique_ptr<Sequence> sequence);
  // What was generated for these since the last call counts as served.
  void count_served(const Sequences& sequences);
  void close(Sequence& sequence);

  // Pins the adapters of those who may run next and moves them into `waiting`, until it holds `room` or they would run
  // after all that are in it. Adapters stay unpinned for as long as that, so that they can make way for others.
  // In fair order, but for those whose adapter is still on its way: the others pass them. An adapter that finds no room
  // beside the pinned ones stops whoever needs an adapter and comes later; only those whose adapter is in use anyway
  // pass, and they only for the cycle time. Then what is in use runs out, and the one that waits gets its room.
  void take_ready(Clock::time_point now, std::int64_t room, Sequences& waiting);

  void take_ended(Sequences& ended) { queue_.take_ended(ended); }
  void for_each(const std::function<void(Sequence&)>& visit) { queue_.for_each(visit); }  // in no order
  std::int64_t num_waiting() const { return queue_.num_waiting(); }

 private:
  struct Blocked {
    Clock::time_point since;
    QueuePlace place;
  };
  Offer offer(Sequence& sequence, Clock::time_point now, std::optional<Blocked>& blocked) const;

  std::chrono::milliseconds cycle_time_;
  FairQueue queue_;
};

}  // namespace shoal
