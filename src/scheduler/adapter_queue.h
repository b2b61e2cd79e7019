// AdapterQueue: requests that do not hold their adapter yet, and the rule by which they get it. Used by the scheduler's
// loop.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "scheduler/fair_queue.h"
#include "scheduler/sequence.h"

namespace shoal {

class AdapterQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // `max_running`: sequences that may run at once.
  AdapterQueue(std::chrono::milliseconds cycle_time, std::int64_t max_running)
      : cycle_time_(cycle_time), max_of_tenant_(max_running - std::min(max_running / 8, kMaxKeptFree)) {}

  // Gives it its place. From here on it counts for its tenant and adapter, until close().
  Sequence& add(std::unique_ptr<Sequence> sequence);
  // What was started, and generated for these since the last call, counts as served.
  void count_served(const Sequences& sequences);
  void close(Sequence& sequence);

  // Pins the adapters of those who may run next and moves them into `waiting`, until it holds `room` or they would run
  // after all that are in it. Adapters stay unpinned for as long as that, so that they can make way for others.
  // In fair order, but for those whose adapter is still on its way: the others pass them. An adapter that finds no room
  // beside the pinned ones stops whoever needs an adapter and comes later; only those whose adapter is in use anyway
  // pass, and they only for the cycle time. Then what is in use runs out, and the one that waits gets its room.
  // While several tenants send requests, none of them may take all that may run: whoever sends little finds a place
  // free, where a place that is shared fairly would still have to end first what is in it.
  void take_ready(Clock::time_point now, std::int64_t room, Sequences& waiting);

  void take_ended(Sequences& ended) { queue_.take_ended(ended); }
  void for_each(const std::function<void(Sequence&)>& visit) { queue_.for_each(visit); }  // in no order
  std::int64_t num_waiting() const { return queue_.num_waiting(); }

 private:
  struct Blocked {
    Clock::time_point since;
    QueuePlace place;
  };
  static constexpr std::int64_t kMaxKeptFree = 4;
  static constexpr std::chrono::seconds kTenantsStay{60};

  bool full(const Sequence& sequence, Clock::time_point now) const;
  Offer offer(Sequence& sequence, Clock::time_point now, std::optional<Blocked>& blocked) const;

  std::chrono::milliseconds cycle_time_;
  std::int64_t max_of_tenant_;
  FairQueue queue_;
  std::unordered_map<std::string, std::int64_t> taken_;  // by tenant: ready or running
  bool any_came_ = false;
  std::string last_tenant_;                       // of the request that came last
  std::optional<Clock::time_point> last_change_;  // when one came of another tenant than the one before
};

}  // namespace shoal
