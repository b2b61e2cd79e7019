#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "probe.h"
#include "probe_matrix.h"

namespace shoal {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{4} << 30;
constexpr int kRuns = 5;

// 64 bytes at a time into eight sums, so that loads and not additions are what it waits for.
std::uint64_t sum_words(const std::uint64_t* words, std::int64_t count) {
  using Wide = std::uint64_t __attribute__((vector_size(64)));
  Wide sums[8] = {};
  for (std::int64_t i = 0; i + 64 <= count; i += 64) {
    for (int j = 0; j < 8; ++j) {
      Wide value;
      std::memcpy(&value, words + i + j * 8, sizeof value);
      sums[j] += value;
    }
  }
  std::uint64_t total = 0;
  for (const Wide& sum : sums) {
    for (int lane = 0; lane < 8; ++lane) total += sum[lane];
  }
  return total;
}

double read_once(const std::uint64_t* words, std::int64_t count, int num_threads) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(num_threads));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads;
  const std::int64_t share = count / num_threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] { sums[static_cast<std::size_t>(i)] = sum_words(words + i * share, share); });
  }
  threads.clear();
  const std::chrono::duration<double> elapsed_s = std::chrono::steady_clock::now() - start;
  // The sum is used, or the compiler would leave the reading out.
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  const volatile std::uint64_t sink = total;
  static_cast<void>(sink);
  return static_cast<double>(share * num_threads) * 8 / elapsed_s.count() / 1e9;
}

}  // namespace

MachineRates probe_machine(int num_threads) {
  MachineRates rates;
  {
    const Buffer buffer(host_allocator(), kReadBytes);
    auto* words = static_cast<std::uint64_t*>(buffer.raw());
    std::memset(words, 1, static_cast<std::size_t>(kReadBytes));
    for (int run = 0; run < kRuns; ++run) {
      rates.read_gb_s = std::max(rates.read_gb_s, read_once(words, kReadBytes / 8, num_threads));
    }
  }
  const MatrixRate matrix = probe_matrix_rate(num_threads);
  rates.matrix_gflop_s = matrix.gflop_s;
  rates.matrix_dtype = matrix.dtype;
  return rates;
}

}  // namespace shoal
