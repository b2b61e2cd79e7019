// Wakeup: what an idle thread sleeps on; anyone may ring it. Used by the scheduler thread, rung by server and engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace shoal {

class Wakeup {
 public:
  // Rings; a ring while nobody waits is remembered. Safe from any thread.
  void notify() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    condition_.notify_one();
  }

  // Returns at the next ring, or at once if one is remembered; forgets it.
  void wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

  // Whether a ring is remembered; forgets it and never sleeps. A wait of no time at all does: some 60 us on Linux.
  bool take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(rung_, false);
  }

  // As wait(), with a time limit; false when it passed without a ring.
  bool wait_for(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const bool rung = condition_.wait_for(lock, timeout, [this] { return rung_; });
    rung_ = false;
    return rung;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool rung_ = false;  // guarded by mutex_
};

}  // namespace shoal
