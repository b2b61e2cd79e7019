#include "scheduler/request.h"

#include <utility>

namespace shoal {

EventStream::EventStream(std::function<void()> on_event, Wakeup& scheduler_wakeup)
    : on_event_(std::move(on_event)), scheduler_wakeup_(scheduler_wakeup) {}

std::optional<Event> EventStream::pop() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  std::optional<Event> event(std::move(events_.front()));
  events_.pop_front();
  return event;
}

void EventStream::cancel() {
  if (!cancelled_.exchange(true, std::memory_order_relaxed)) scheduler_wakeup_.notify();
}

void EventStream::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  if (on_event_) on_event_();
}

}  // namespace shoal
