#include "server/turn.h"

#include <utility>

namespace shoal {

bool Turn::take(std::function<bool()> on_turn) {
  const std::lock_guard lock(mutex_);
  if (taken_) waiting_.push_back(std::move(on_turn));
  return !std::exchange(taken_, true);
}

void Turn::give_back() {
  for (;;) {
    std::function<bool()> on_turn;
    {
      const std::lock_guard lock(mutex_);
      taken_ = !waiting_.empty();
      if (!taken_) return;
      on_turn = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (on_turn()) return;
  }
}

}  // namespace shoal
