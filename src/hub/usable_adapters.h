// UsableAdapters: the adapters of a LocalSource that the base model can serve. Made by cli/, which gives its list to
// the server.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hub/local_source.h"

namespace shoal {

// Safe to use from several threads at once.
class UsableAdapters {
 public:
  using Check = std::function<Status(const std::filesystem::path& folder)>;

  // `source` outlives this. One call of list() begins no check after `budget`.
  UsableAdapters(LocalSource& source, Check check, std::chrono::milliseconds budget = std::chrono::milliseconds(100));

  // The ids of `source` but for those that `check` refuses. A verdict holds until one of the adapter's two files
  // changes; what a call does not reach in its time is listed until a later one does.
  std::vector<std::string> list();

 private:
  struct Verdict {
    std::filesystem::file_time_type config_time;
    std::filesystem::file_time_type weights_time;
    bool usable = true;
  };

  Verdict look(const std::string& id) const;
  bool check(const std::string& id) const;

  LocalSource& source_;
  const Check check_;
  const std::chrono::milliseconds budget_;
  std::mutex mutex_;
  std::map<std::string, Verdict> verdicts_;  // guarded by mutex_
};

}  // namespace shoal
