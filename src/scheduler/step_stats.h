// StepStats: what became of the engine's steps, as distributions. Counted by the scheduler's loop, shown by server/.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace shoal {

// How many values lie at or below each of ascending bounds, and above them all.
template <std::size_t kNumBounds>
struct Distribution {
  std::array<std::int64_t, kNumBounds + 1> counts{};
  double sum = 0.0;

  void add(double value, const std::array<double, kNumBounds>& bounds) {
    ++counts[static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
    sum += value;
  }
};

// LoRAX's: 1.5e-4 x 1.5^i seconds.
constexpr std::array<double, 35> kDurationBounds = [] {
  std::array<double, 35> bounds{};
  double seconds = 1.5e-4;
  for (double& bound : bounds) {
    bound = seconds;
    seconds *= 1.5;
  }
  return bounds;
}();

constexpr std::array<double, 11> kBatchSizeBounds{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

// Of steps with at least one decode row, or of those with prompts alone.
struct StepStats {
  std::int64_t succeeded = 0;
  std::int64_t failed = 0;  // the engine threw
  Distribution<kDurationBounds.size()> seconds;
};

// What the prefix cache did; zeros without it. A sequence that comes back after a preemption counts again.
struct PrefixStats {
  std::int64_t lookups = 0;         // sequences that started or came back
  std::int64_t hits = 0;            // of these, those that found at least one block
  std::int64_t hit_tokens = 0;      // tokens that were not computed again
  std::int64_t evicted_blocks = 0;  // so far
  std::int64_t cached_blocks = 0;   // now: kept although nobody holds them
};

}  // namespace shoal
