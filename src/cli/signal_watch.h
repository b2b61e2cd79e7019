// SignalWatch: SIGTERM and SIGINT as a server takes them. Used by `serve`.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

#include "core/wakeup.h"

namespace shoal {

// Waits for SIGTERM and SIGINT on a thread of its own; all other threads have them blocked. Before serving begins the
// first one ends the process, then it asks for a drain, and one more ends the process at once.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void wait_for_drain();

 private:
  void watch();

  sigset_t signals_{};
  std::atomic<bool> serving_{false};
  std::atomic<bool> stopping_{false};
  bool draining_ = false;  // of watch() alone
  Wakeup drain_;
  std::thread thread_;
};

}  // namespace shoal
