#include "scheduler/scheduler.h"

#include <utility>

#include "scheduler/loop.h"

namespace shoal {

Scheduler::Scheduler(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, SchedulerOptions options)
    : loop_(std::make_unique<Loop>(engine, wakeup, tokenizer, options)) {}

Scheduler::~Scheduler() = default;

Result<std::shared_ptr<EventStream>> Scheduler::submit(Request request, std::function<void()> on_event) {
  return loop_->submit(std::move(request), std::move(on_event));
}

bool Scheduler::drain(std::chrono::milliseconds timeout) { return loop_->drain(timeout); }

SchedulerStats Scheduler::stats() const { return loop_->stats(); }

bool Scheduler::making_progress(std::chrono::milliseconds limit) const { return loop_->making_progress(limit); }

}  // namespace shoal
