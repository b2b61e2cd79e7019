// Turn: one at a time may do something large, the others wait without a thread. Used by http_connection.cc for large
// requests and by tokenize.cc for large answers.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

namespace shoal {

// All callable from any thread.
class Turn {
 public:
  // True: the turn is the caller's at once. False: `on_turn` is called when it is, from whichever thread gives it
  // back; it must be quick, and returns false to let the turn pass on.
  bool take(std::function<bool()> on_turn);
  // Hands the turn to the next that still wants it.
  void give_back();

 private:
  std::mutex mutex_;
  bool taken_ = false;                           // guarded by mutex_
  std::deque<std::function<bool()>> waiting_{};  // guarded by mutex_
};

}  // namespace shoal
