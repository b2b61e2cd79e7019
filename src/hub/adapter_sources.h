// AdapterSources: one AdapterSource for all of them, by the source that a key names. Made by cli/, handed to the
// engine.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "lora/adapter_source.h"

namespace shoal {

// How long replies of remote sources hold: a load that is tried again, or many requests for what is not there, ask
// once.
struct ReplyTimes {
  std::chrono::seconds folder{5};
  std::chrono::seconds error{2};
};

// Safe to use from several threads at once.
class AdapterSources final : public AdapterSource {
 public:
  // `local` outlives this.
  explicit AdapterSources(AdapterSource& local, ReplyTimes times = {}) : local_(local), times_(times) {}

  // Before the first fetch.
  void add_remote(const std::string& name, std::unique_ptr<AdapterSource> source);

  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override;

 private:
  struct Reply {
    Result<std::filesystem::path> folder;
    std::chrono::steady_clock::time_point until;
  };

  AdapterSource& local_;
  const ReplyTimes times_;
  std::map<std::string, std::unique_ptr<AdapterSource>> remote_;
  std::mutex mutex_;
  std::map<std::string, Reply> replies_;  // by name_of(key); guarded by mutex_
};

}  // namespace shoal
