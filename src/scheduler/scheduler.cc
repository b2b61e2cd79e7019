#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "scheduler/loop.h"

namespace shoal {

Scheduler::Scheduler(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, SchedulerOptions options)
    : wakeup_(wakeup),
      now_(options.now),
      prefix_caching_(options.prefix_caching),
      loop_(std::make_unique<Loop>(engine, wakeup, tokenizer, std::move(options))),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Scheduler::~Scheduler() {
  thread_.request_stop();
  wakeup_.notify();
  thread_.join();
}

void Scheduler::run(const std::stop_token& stop) {
  Loop::News news = Loop::News::kRung;
  while (!stop.stop_requested()) {
    if (loop_->turn(news)) {
      news = loop_->look_for_news();
    } else if (const auto deadline = loop_->deadline()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now_());
      news = wakeup_.wait_for(std::max(left, std::chrono::milliseconds(0))) ? Loop::News::kRung : Loop::News::kNone;
    } else {
      wakeup_.wait();
      news = Loop::News::kRung;
    }
  }
  loop_->end_all();
}

Result<std::shared_ptr<EventStream>> Scheduler::submit(Request request, std::function<void()> on_event) {
  return loop_->submit(std::move(request), std::move(on_event));
}

bool Scheduler::drain(std::chrono::milliseconds timeout) { return loop_->drain(timeout); }

SchedulerStats Scheduler::stats() const { return loop_->stats(); }

bool Scheduler::making_progress(std::chrono::milliseconds limit) const { return loop_->making_progress(limit); }

}  // namespace shoal
