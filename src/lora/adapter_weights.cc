#include "lora/adapter_weights.h"

#include <algorithm>

namespace shoal {

std::int32_t LoraTargets::add(LoraTarget target) {
  const auto id = static_cast<std::int32_t>(targets_.size());
  CHECK(by_path_.emplace(target.path, id).second);
  targets_.push_back(std::move(target));
  return id;
}

std::optional<std::int32_t> LoraTargets::find(std::string_view path) const {
  const auto found = by_path_.find(std::string(path));
  if (found == by_path_.end()) return std::nullopt;
  return found->second;
}

const LoraTarget& LoraTargets::at(std::int32_t target_id) const {
  return targets_.at(static_cast<std::size_t>(target_id));
}

AdapterWeights::AdapterWeights(Buffer storage, std::vector<LoraPair> pairs)
    : storage_(std::move(storage)), pairs_(std::move(pairs)) {
  for (const LoraPair& pair : pairs_) {
    if (!pair.a.defined()) continue;
    ++num_modules_;
    max_rank_ = std::max(max_rank_, pair.a.dim(0));
  }
}

}  // namespace shoal
