// Scheduler: owns every request from submit to its last event and decides what each step runs. One thread owns its
// state; submit(), stats() and drain() may be called from any. Used by server/ and by cli/ generate.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "cache/block_allocator.h"
#include "core/result.h"
#include "core/wakeup.h"
#include "engine/engine.h"
#include "scheduler/admission.h"
#include "scheduler/request.h"
#include "scheduler/step_stats.h"
#include "text/tokenizer.h"

namespace shoal {

// What time it is; called from any thread.
using SchedulerClock = std::function<std::chrono::steady_clock::time_point()>;

struct SchedulerOptions {
  std::int64_t max_batch_prefill_tokens = 4096;              // query tokens of one step, decode rows included
  std::int64_t max_concurrent_requests = 1024;               // running and queued; beyond: kOverloaded
  std::optional<std::int64_t> max_queue = {};                // queued; beyond: kOverloaded
  std::optional<std::int64_t> max_requests_per_tenant = {};  // running and queued; beyond: kOverloaded
  std::chrono::milliseconds request_timeout{0};              // from submit to the last event; 0: none
  std::int64_t max_total_tokens = 0;                         // prompt + new of one request; 0: what the model can hold
  // How long requests for adapters that run may pass one whose adapter finds no room beside them.
  std::chrono::milliseconds adapter_cycle_time{2000};
  BlockOrder block_order = BlockOrder::kAscending;
  bool prefix_caching = false;  // texts that begin alike share the cache blocks of their beginning
  SchedulerClock now = std::chrono::steady_clock::now;
};

// A consistent picture for /metrics and tests.
struct SchedulerStats {
  std::int64_t queued = 0;  // submitted and not running: adapter loads and preempted ones included
  std::int64_t running = 0;
  std::int64_t used_blocks = 0;  // that sequences hold
  std::int64_t total_blocks = 0;
  std::int64_t steps = 0;         // engine steps so far
  std::int64_t decode_steps = 0;  // of these, steps that held at least one decode row
  std::int64_t steps_ahead = 0;   // started before the step before them had ended
  std::int64_t batch_size = 0;    // sequences of the last step, 0 when idle
  std::int64_t generated_tokens = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t failed = 0;
  std::int64_t timed_out_queued = 0;   // of those that failed: never started
  std::int64_t timed_out_running = 0;  // of those that failed: the answer was not whole
  RejectedCounts rejected;
  PrefixStats prefix;
  std::int64_t masks = 0;                           // of rows under a grammar, so far
  double mask_seconds = 0.0;                        // for which steps waited for them
  StepStats prefill;                                // steps of prompts alone
  StepStats decode;                                 // steps with at least one decode row
  Distribution<kBatchSizeBounds.size()> next_size;  // requests that a step started, where it started any
  std::int64_t joined_batches = 0;                  // steps that started requests beside running ones
};

class Scheduler {
 public:
  class Loop;  // all but the thread; the simulator takes its turns one by one

  // `engine`, `wakeup` (the one the engine rings) and `tokenizer` outlive the scheduler. `tokenizer` may be null: then
  // no text is made and stop strings are refused (token-id mode of the command line).
  Scheduler(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, SchedulerOptions options);
  ~Scheduler();  // stops at once: streams that still run get an Error
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Errors: kOverloaded, kUnavailable (draining), kValidation (what can never fit, with the numbers).
  Result<std::shared_ptr<EventStream>> submit(Request request, std::function<void()> on_event);

  // No new requests; returns when all running ones ended or were cancelled, or `timeout` passed (false).
  bool drain(std::chrono::milliseconds timeout);

  SchedulerStats stats() const;
  bool prefix_caching() const { return prefix_caching_; }
  // False when requests run but no step ended for `limit`: the engine hangs.
  bool making_progress(std::chrono::milliseconds limit) const;

 private:
  void run(const std::stop_token& stop);

  Wakeup& wakeup_;
  SchedulerClock now_;
  const bool prefix_caching_;
  std::unique_ptr<Loop> loop_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace shoal
