// Invariants: what must hold between any two turns of the scheduler's loop, whatever happens. Used by the simulation.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "scheduler/loop.h"
#include "simulator/simulated_engine.h"

namespace shoal {

// Whether all that wait are served in the order in which they came: one tenant, one priority, and no adapter that is
// served so much that it has to stand back.
bool is_plain(const Trace& trace);

// How long the first of all requests of a plain trace may wait until it runs. It waits for
// - a place: those that run already,
// - its adapter: loads and an upload that are under way, its own, and the cycle time in which others may pass it,
// - room for the adapter: those that are pinned when the cycle ends,
// - blocks: those that run when its adapter is there.
// Each of the three groups is as many as may run at most, which at worst run one after another: their text in chunks
// again, then a token a step. Every request becomes the first, so a request waits no longer than that many times for
// each one before it.
VirtualTime::Duration longest_first_wait(const Trace& trace);

class Invariants {
 public:
  // All outlive this.
  Invariants(Scheduler::Loop& loop, const FakeEngine& engine, const SimulatedEngine& simulated, const Trace& trace,
             const VirtualTime& time);

  void begin_turn();
  void end_turn();                                               // each breach is a failed expectation
  double worst_wait_share() const { return worst_wait_share_; }  // of the longest that may be

 private:
  struct Progress {
    std::int64_t num_cached = 0;
    bool decodes = false;
    bool is_first = false;
  };

  void look();
  void check_blocks() const;
  void check_pins() const;
  void check_rows() const;
  void check_preempted() const;
  void check_ends() const;
  void check_first();

  Scheduler::Loop& loop_;
  const FakeEngine& engine_;
  const SimulatedEngine& simulated_;
  const Trace& trace_;
  const VirtualTime& time_;
  const bool is_plain_;
  const VirtualTime::Duration longest_step_, longest_wait_;
  std::vector<const Sequence*> queued_, all_;  // when it looked last
  std::int64_t num_steps_before_ = 0;
  std::map<const EventStream*, Progress> running_before_;
  std::set<const EventStream*> cancelled_before_;
  const EventStream* first_ = nullptr;  // that waits
  VirtualTime::TimePoint first_since_;
  double worst_wait_share_ = 0.0;
};

}  // namespace shoal
