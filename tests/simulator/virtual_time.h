// VirtualTime: a clock that stands still until it is moved, and what is to happen at which time. Used by the simulator.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace shoal {

class VirtualTime {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  TimePoint now() const { return now_; }
  void after(Duration delay, std::function<void()> event) { events_.emplace(now_ + delay, std::move(event)); }
  // What is due meanwhile happens, each at its own time; of those due at once, the one that was asked for first.
  void advance(Duration duration) {
    const TimePoint end = now_ + duration;
    while (!events_.empty() && events_.begin()->first <= end) happen_next();
    now_ = end;
  }
  bool has_events() const { return !events_.empty(); }
  // To what happens next, or to `limit` where nothing does before.
  void advance_to_next(TimePoint limit) {
    if (!events_.empty() && events_.begin()->first <= limit) {
      happen_next();
    } else {
      now_ = std::max(now_, limit);
    }
  }
  void forget_events() { events_.clear(); }

 private:
  // Not zero, which the scheduler takes for "not yet".
  static constexpr TimePoint kBegin{std::chrono::hours(1)};

  void happen_next() {
    const auto next = events_.extract(events_.begin());
    now_ = std::max(now_, next.key());
    next.mapped()();
  }

  TimePoint now_ = kBegin;
  std::multimap<TimePoint, std::function<void()>> events_;
};

}  // namespace shoal
