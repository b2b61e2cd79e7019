#include "hub/usable_adapters.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace shoal {

UsableAdapters::UsableAdapters(LocalSource& source, Check check, std::chrono::milliseconds budget)
    : source_(source), check_(std::move(check)), budget_(budget) {}

std::vector<std::string> UsableAdapters::list() {
  const std::lock_guard lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + budget_;
  std::map<std::string, Verdict> verdicts;
  std::vector<std::string> usable;
  for (std::string& id : source_.list()) {
    Verdict verdict = look(id);
    const auto known = verdicts_.find(id);
    const bool unchanged = known != verdicts_.end() && known->second.config_time == verdict.config_time &&
                           known->second.weights_time == verdict.weights_time;
    const bool in_time = std::chrono::steady_clock::now() < deadline;
    if (unchanged) {
      verdict.usable = known->second.usable;
    } else if (in_time) {
      verdict.usable = check(id);
    }
    if (unchanged || in_time) verdicts.emplace(id, verdict);
    if (verdict.usable) usable.push_back(std::move(id));
  }
  verdicts_ = std::move(verdicts);
  return usable;
}

UsableAdapters::Verdict UsableAdapters::look(const std::string& id) const {
  const std::filesystem::path folder = source_.root() / id;
  std::error_code absent;  // a file that is not there has the earliest of times
  return {.config_time = std::filesystem::last_write_time(folder / "adapter_config.json", absent),
          .weights_time = std::filesystem::last_write_time(folder / "adapter_model.safetensors", absent)};
}

bool UsableAdapters::check(const std::string& id) const {
  const Result<std::filesystem::path> folder = source_.fetch({.source = "local", .id = id});
  const Status status = folder.ok() ? check_(folder.value()) : Status(folder.error());
  if (!status.ok()) spdlog::warn("adapter {} is not listed: {}", id, status.error().message);
  return status.ok();
}

}  // namespace shoal
