#include "hub/adapter_sources.h"

#include <fmt/format.h>

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostReplies = 1000;

}  // namespace

void AdapterSources::add_remote(const std::string& name, std::unique_ptr<AdapterSource> source) {
  remote_[name] = std::move(source);
}

Result<std::filesystem::path> AdapterSources::fetch(const AdapterKey& key) {
  if (key.source == "local") return local_.fetch(key);
  const auto source = remote_.find(key.source);
  if (source == remote_.end()) {
    return Error{ErrorCode::kAdapterInvalid, fmt::format("adapter source '{}' is not served here", key.source)};
  }
  const std::string name = name_of(key);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(replies_, [now = Clock::now()](const auto& reply) { return reply.second.until <= now; });
    const auto found = replies_.find(name);
    if (found != replies_.end()) return found->second.folder;
  }
  Result<std::filesystem::path> folder = source->second->fetch(key);
  const std::lock_guard lock(mutex_);
  const auto until = Clock::now() + (folder.ok() ? times_.folder : times_.error);
  if (replies_.size() < kMostReplies) replies_.insert_or_assign(name, Reply{.folder = folder, .until = until});
  return folder;
}

AdapterVersion AdapterSources::version(const AdapterKey& key) {
  if (key.source == "local") return local_.version(key);
  const auto source = remote_.find(key.source);
  return source == remote_.end() ? AdapterVersion() : source->second->version(key);
}

}  // namespace shoal
