// Scheduler::Loop: the thread that owns every request between submit and its last event. Private to the scheduler.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "core/wakeup.h"
#include "engine/engine.h"
#include "scheduler/adapter_queue.h"
#include "scheduler/batch.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace shoal {

class Scheduler::Loop {
 public:
  Loop(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, const SchedulerOptions& options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Any thread:
  Result<std::shared_ptr<EventStream>> submit(Request request, std::function<void()> on_event);
  bool drain(std::chrono::milliseconds timeout);
  SchedulerStats stats() const;
  bool making_progress(std::chrono::milliseconds limit) const;

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Error> check_request(const Request& request) const;

  // The loop's thread:
  void run(const std::stop_token& stop);
  // Whether the Wakeup rang.
  bool look_for_news();
  void take_news();
  void drop_failed_adapters();
  void take_ready();
  const StepPlan& plan_step();
  void run_step(const StepPlan& plan);
  void apply(const StepResult& result);
  void accept(Sequence& sequence, const SampledToken& sample, Clock::time_point now);
  void fail(Sequence& sequence, Error error);
  void drop_cancelled(const Sequences& sequences);
  void collect_ended(Sequences& sequences);
  void settle();
  void end_all();

  // Fixed:
  Engine& engine_;
  Wakeup& wakeup_;
  const Tokenizer* tokenizer_;
  SchedulerOptions options_;
  EngineInfo info_;

  // The loop's thread alone:
  Batch batch_;
  Sequences arrivals_;  // taken from inbox_, always empty between steps
  AdapterQueue adapter_queue_;
  Sequences waiting_;  // ready to run, their adapters pinned
  Sequences ended_;    // gave back everything; their last events are not sent yet
  SchedulerStats counters_;
  Clock::time_point last_progress_;
  Clock::duration last_step_{};
  bool pins_released_ = false;  // since the adapter queue was walked

  // Shared:
  mutable std::mutex mutex_;
  std::condition_variable all_ended_;
  Sequences inbox_;               // guarded by mutex_, like all below
  std::int64_t num_permits_ = 0;  // requests that hold anything
  std::int64_t num_open_ = 0;     // streams without their last event
  std::int64_t next_arrival_ = 0;
  bool draining_ = false;
  SchedulerStats stats_;
  Clock::time_point shared_progress_;

  std::jthread thread_;  // last: it uses all the others
};

}  // namespace shoal
