// How tests wait for what must happen. The time is spent only where a test fails, so it is long: under a sanitizer, on
// a busy machine, a step takes a hundred times its time.
#pragma once

#include <chrono>
#include <thread>

namespace shoal::test {

inline constexpr std::chrono::milliseconds kPatience{120'000};

template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace shoal::test
