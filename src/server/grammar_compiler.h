// GrammarCompiler: compiles the grammars of requests on threads of its own and keeps the last ones. Used by
// generation.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/result.h"
#include "server/texts.h"
#include "text/grammar.h"

namespace shoal {

class GrammarCompiler {
 public:
  using Compiled = Result<std::shared_ptr<const Grammar>>;
  using Done = std::function<void(const Compiled&)>;

  static constexpr std::size_t kMaxQueued = 128;
  static constexpr std::size_t kMaxKept = 32;  // as many as LoRAX keeps
  static constexpr std::chrono::milliseconds kLimit{5'000};

  GrammarCompiler() = default;
  ~GrammarCompiler();  // what waits is not compiled any more
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // For answers made by `texts`. Any thread. `done` is called once, from whichever thread has the result; it must be
  // quick and must not throw. kValidation: what is wrong with it; kOverloaded: too many wait. Tenants share nothing
  // that is kept.
  void compile(GrammarSpec spec, std::shared_ptr<const Texts> texts, const std::string& tenant, Done done);

 private:
  struct Job {
    GrammarSpec spec;
    std::shared_ptr<const Texts> texts;
    std::string tenant;
    Done done;
  };
  struct Kept {
    GrammarSpec spec;
    std::shared_ptr<const Texts> texts;
    std::string tenant;
    std::shared_ptr<const Grammar> grammar;  // shared with the requests that follow it
  };

  void work(const std::stop_token& stop);
  std::optional<Job> next_job(const std::stop_token& stop);
  std::shared_ptr<const Grammar> find_kept(const GrammarSpec& spec, const std::shared_ptr<const Texts>& texts,
                                           const std::string& tenant);

  std::mutex mutex_;
  std::condition_variable_any queued_;
  std::deque<Job> jobs_;               // guarded by mutex_, like all below
  std::list<Kept> kept_;               // the last used first
  std::vector<std::jthread> threads_;  // started by the first job
};

}  // namespace shoal
