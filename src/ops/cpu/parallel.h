// Ways to spread a list over the pool. Used by the ops of this folder.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/thread_pool.h"

namespace shoal::cpu {

// task(slot, index) once for each index, taken in order as threads come free. No two tasks run in one slot at a time
// and slots lie in [0, num_threads), so a slot may own scratch.
template <typename Task>
void parallel_slots(ThreadPool& pool, std::int64_t num_tasks, const Task& task) {
  std::atomic<std::int64_t> next{0};
  pool.parallel_for(std::min<std::int64_t>(pool.num_threads(), num_tasks), [&](std::int64_t slot) {
    for (;;) {
      const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= num_tasks) return;
      task(slot, index);
    }
  });
}

// Work of so many bytes is done before the pool has woken.
inline constexpr std::int64_t kSmallWorkBytes = 128 << 10;

// body(begin, end) over ranges that cover [0, num_rows); on the calling thread alone if there is little to do.
template <typename Body>
void parallel_rows(ThreadPool& pool, std::int64_t num_rows, std::int64_t bytes_per_row, const Body& body) {
  if (num_rows == 0) return;
  const std::int64_t most = std::max<std::int64_t>(1, num_rows * bytes_per_row / kSmallWorkBytes);
  const std::int64_t num_tasks = std::min({most, num_rows, std::int64_t{pool.num_threads()} * 4});
  if (num_tasks == 1) {
    body(std::int64_t{0}, num_rows);
    return;
  }
  pool.parallel_for(num_tasks,
                    [&](std::int64_t task) { body(task * num_rows / num_tasks, (task + 1) * num_rows / num_tasks); });
}

}  // namespace shoal::cpu
