#include "core/thread_pool.h"

#include "core/check.h"

namespace shoal {
namespace {

// Ops of one step follow each other within microseconds, so a worker looks this often before it sleeps;
// an idle server sleeps.
constexpr int kSpinsBeforeSleep = 4000;

inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { worker_loop(stop); });
  }
}

ThreadPool::~ThreadPool() {
  for (std::jthread& worker : workers_) worker.request_stop();
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

void ThreadPool::run(std::int64_t num_tasks, Call call, const void* task) {
  if (workers_.empty() || num_tasks <= 1) {
    for (std::int64_t i = 0; i < num_tasks; ++i) call(task, i);
    return;
  }
  call_ = call;
  task_ = task;
  num_tasks_ = num_tasks;
  next_index_.store(0, std::memory_order_relaxed);
  gate_.store(0, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work();
  // The list lives on the caller's stack: wait until no worker can still read it.
  std::uint32_t gate = gate_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  for (int spins = 0; gate != kClosed; ++spins) {
    if (spins < kSpinsBeforeSleep) {
      pause_processor();
    } else {
      gate_.wait(gate, std::memory_order_acquire);
    }
    gate = gate_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::enter() {
  std::uint32_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if ((gate & kClosed) != 0) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return true;
}

void ThreadPool::leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) gate_.notify_one();
}

void ThreadPool::work() {
  for (;;) {
    const std::int64_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    if (index >= num_tasks_) return;
    call_(task_, index);
  }
}

void ThreadPool::worker_loop(const std::stop_token& stop) {
  std::uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    std::uint32_t current = generation_.load(std::memory_order_acquire);
    while (current == seen) {
      if (++spins < kSpinsBeforeSleep) {
        pause_processor();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
      current = generation_.load(std::memory_order_acquire);
    }
    if (stop.stop_requested()) return;
    seen = current;
    if (!enter()) continue;
    work();
    leave();
  }
}

}  // namespace shoal
