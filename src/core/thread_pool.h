// ThreadPool: a fixed team that runs one indexed task list at a time without allocating.
// Used by the CPU backend inside a step; the caller works too.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace shoal {

class ThreadPool {
 public:
  // `num_threads` counts the caller: 1 makes no thread at all.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index) once for each index in [0, num_tasks), on all threads, and returns when all are done.
  // One caller at a time. `task` must not throw.
  template <typename Task>
  void parallel_for(std::int64_t num_tasks, const Task& task) {
    run(num_tasks, [](const void* erased, std::int64_t index) { (*static_cast<const Task*>(erased))(index); }, &task);
  }

 private:
  using Call = void (*)(const void* task, std::int64_t index);

  void run(std::int64_t num_tasks, Call call, const void* task);
  void work();
  bool enter();
  void leave();
  void worker_loop(const std::stop_token& stop);

  std::vector<std::jthread> workers_;
  // The current list. Written by the caller while the gate is closed and nobody is inside, read by workers inside.
  Call call_ = nullptr;
  const void* task_ = nullptr;
  std::int64_t num_tasks_ = 0;
  std::atomic<std::int64_t> next_index_{0};
  std::atomic<std::uint32_t> generation_{0};  // moves with each list: what workers wait for
  // kClosed, plus the workers inside. The caller closes it when no index is left, so it never waits for a worker that
  // the operating system has not run yet: on a busy machine the others do that worker's share.
  static constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> gate_{kClosed};
};

}  // namespace shoal
