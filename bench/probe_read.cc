#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "probe.h"
#include "probe_matrix.h"
#include "wide_read.h"

namespace shoal {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{4} << 30;
constexpr int kRuns = 5;

// The best of a few runs, in bytes a second. Every thread writes its share before it reads it, so that on a machine of
// several memories the pages lie with their reader.
double read_bytes_per_s(int num_threads) {
  const Buffer buffer(host_allocator(), kReadBytes);
  const std::int64_t share = kReadBytes / 8 / num_threads / 128 * 128;
  std::vector<std::int64_t> sums(static_cast<std::size_t>(num_threads));
  std::barrier together(num_threads + 1);
  std::vector<std::jthread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      std::int64_t* words = static_cast<std::int64_t*>(buffer.raw()) + i * share;
      std::fill_n(words, share, i);
      for (int run = 0; run < kRuns; ++run) {
        together.arrive_and_wait();
        sums[static_cast<std::size_t>(i)] += wide_sum(words, share);
        together.arrive_and_wait();
      }
    });
  }
  double best_s = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    together.arrive_and_wait();
    const auto start = std::chrono::steady_clock::now();
    together.arrive_and_wait();
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  threads.clear();
  // The sums are used, or the compiler would leave the reading out.
  for (int i = 0; i < num_threads; ++i) CHECK_EQ(sums[static_cast<std::size_t>(i)], kRuns * share * i);
  return static_cast<double>(share * num_threads) * 8 / best_s;
}

}  // namespace

MachineRates probe_machine(int num_threads) {
  const MatrixRate matrix = probe_matrix_rate(num_threads);
  return {
      .read_gb_s = read_bytes_per_s(num_threads) / 1e9, .matrix_gflop_s = matrix.gflop_s, .matrix_dtype = matrix.dtype};
}

}  // namespace shoal
