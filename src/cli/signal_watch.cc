#include "cli/signal_watch.h"

#include <cstdlib>

namespace shoal {

SignalWatch::SignalWatch() {
  sigemptyset(&signals_);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  stopping_.store(true);
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalWatch::wait_for_drain() {
  serving_.store(true);
  drain_.wait();
}

void SignalWatch::watch() {
  for (;;) {
    int signal = 0;
    sigwait(&signals_, &signal);
    if (stopping_.load()) return;
    if (signal == SIGUSR1) continue;
    if (!serving_.load() || draining_) std::_Exit(0);
    draining_ = true;
    drain_.notify();
  }
}

}  // namespace shoal
