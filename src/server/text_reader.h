// TextReader: reads the tokenizers and templates of adapters on a thread of its own, so that the threads of connections
// need not. Part of ServerContext; used by the router.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "server/adapter_texts.h"

namespace shoal {

class TextReader {
 public:
  static constexpr std::size_t kMaxWaiting = 64;

  // `texts` outlives this.
  explicit TextReader(AdapterTexts& texts) : texts_(texts) {}
  ~TextReader();  // what waits is not read any more
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  // Any thread. Calls `done` from a thread of its own once the texts of `adapter` were read, or could not be; it must
  // be quick and must not throw. False, without a call: too many wait.
  bool read(const AdapterKey& adapter, std::function<void()> done);

 private:
  struct Job {
    AdapterKey adapter;
    std::function<void()> done;
  };

  void work(const std::stop_token& stop);
  std::optional<Job> next_job(const std::stop_token& stop);

  AdapterTexts& texts_;
  std::mutex mutex_;
  std::condition_variable_any waiting_;
  std::deque<Job> jobs_;                // guarded by mutex_, like the thread
  std::optional<std::jthread> thread_;  // started by the first job: most servers see none
};

}  // namespace shoal
