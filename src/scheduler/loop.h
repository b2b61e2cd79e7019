// Scheduler::Loop: owns every request between submit and its last event, and works in turns. It has neither thread nor
// clock of its own. Used by the scheduler's thread, and by the simulator test, which moves its clock by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/thread_pool.h"
#include "core/wakeup.h"
#include "engine/engine.h"
#include "scheduler/adapter_queue.h"
#include "scheduler/admission.h"
#include "scheduler/batch.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace shoal {

class Scheduler::Loop {
 public:
  // Whether the Wakeup rang since the turn before.
  enum class News : std::uint8_t { kNone, kRung };

  Loop(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, SchedulerOptions options);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Any thread:
  Result<std::shared_ptr<EventStream>> submit(Request request, std::function<void()> on_event);
  bool drain(std::chrono::milliseconds timeout);
  SchedulerStats stats() const;
  bool making_progress(std::chrono::milliseconds limit) const;

  // One thread, the loop's:
  // Takes the news, plans a step, runs it, sends what came of it. Where a step runs beside the host, the one behind it
  // is started before it ends, if it can be planned without its samples; that one is left for the next turn. False
  // where there was nothing to run: the next turn is due when the Wakeup rings, or at the deadline. The first turn has
  // news.
  bool turn(News news);
  // After a turn that ran a step: whether there is news for the next one.
  News look_for_news();
  // When the first of the requests that are here has had its time; none: no limit, or no requests.
  std::optional<std::chrono::steady_clock::time_point> deadline() const;
  void end_all();  // instead of the next turn: every stream ends now
  // What it has between two turns, for who checks that all of it balances. A request is in one of the three.
  const Batch& batch() const { return batch_; }
  void for_each_queued(const std::function<void(const Sequence&)>& visit) { adapter_queue_.for_each(visit); }
  const Sequences& waiting() const { return waiting_; }
  const Sequences& running() const { return batch_.running(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Error> check_request(const Request& request) const;

  // The loop's thread:
  void take_news();
  void end_overdue();
  void end_loads();
  void count_served();
  void take_ready();
  const StepPlan& plan_step();
  bool launch(const StepPlan& plan, std::span<Sequence* const> rows);
  void launch_next();
  void collect_step();
  void fail_step(std::span<Sequence* const> rows, const std::exception& error);
  void apply(const StepResult& result);
  void take_prompt_scores(const StepResult& result);
  void take_hidden(const StepResult& result);
  FinishEvent& finish(Sequence& sequence, FinishReason reason);  // what its reader will get
  void accept(Sequence& sequence, const SampledToken& sample, const StepResult& result);
  void find_masks();
  void fail(Sequence& sequence, Error error);
  void for_each_open(const std::function<void(Sequence&)>& visit);
  void collect_ended();
  void count_end(const Sequence& sequence);
  void give_back(Sequences& sequences);
  void settle();

  // Fixed:
  Engine& engine_;
  Wakeup& wakeup_;
  const Tokenizer* tokenizer_;
  SchedulerOptions options_;
  EngineInfo info_;

  // The loop's thread alone:
  Batch batch_;
  std::vector<Sequence*> masked_;           // whose next masks are looked for
  std::optional<ThreadPool> mask_threads_;  // made when several are
  Sequences arrivals_;                      // taken from inbox_, always empty between steps
  AdapterQueue adapter_queue_;
  Sequences waiting_;     // ready to run, their adapters pinned
  Sequences left_queue_;  // ended before they were ready; always empty between steps
  Sequences ended_;       // gave back everything; their last events are not sent yet
  SchedulerStats counters_;
  Clock::time_point last_progress_;
  Clock::time_point next_deadline_ = Clock::time_point::max();  // no later than the first that there is
  Clock::duration last_step_{};
  Clock::time_point step_begin_;  // of the older step under way, or the end of the one before it
  bool pins_released_ = false;    // since the adapter queue was walked
  bool room_changed_ = false;     // somebody came or left since a step was planned from what waits

  // Shared:
  mutable std::mutex mutex_;
  std::condition_variable all_ended_;
  Sequences inbox_;            // guarded by mutex_, like all below
  Admission admission_;        // requests that hold anything
  std::int64_t num_open_ = 0;  // streams without their last event
  std::int64_t next_arrival_ = 0;
  bool draining_ = false;
  SchedulerStats stats_;
  std::int64_t room_ = 0;  // more that may run, where nobody waits
  Clock::time_point shared_progress_;
};

}  // namespace shoal
