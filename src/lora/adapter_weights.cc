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

AdapterWeights AdapterWeights::on_device(const Backend& backend) && {
  if (backend.device() == DeviceKind::kCpu) return std::move(*this);
  AdapterWeights moved(Buffer(backend.allocator(), storage_.num_bytes()), std::move(pairs_));
  const std::int64_t num_bytes = storage_.num_bytes();
  backend.copy_to_device(storage_.view(DType::kUInt8, {num_bytes}), moved.storage_.view(DType::kUInt8, {num_bytes}));
  const auto* host = static_cast<const std::byte*>(storage_.raw());
  const auto relocate = [&](Tensor& tensor) {
    const std::int64_t offset = static_cast<const std::byte*>(tensor.raw()) - host;
    tensor = moved.storage_.view(tensor.dtype(), tensor.shape(), offset);
  };
  std::vector<LoraPairRef> refs(moved.pairs_.size());
  for (std::size_t i = 0; i < refs.size(); ++i) {
    LoraPair& pair = moved.pairs_[i];
    if (!pair.a.defined()) continue;
    relocate(pair.a);
    relocate(pair.b);
    refs[i] = {.a = pair.a.raw(),
               .b = pair.b.raw(),
               .scale = pair.scale,
               .rank = static_cast<std::int32_t>(pair.a.dim(0)),
               .dtype = static_cast<std::int32_t>(pair.a.dtype())};
  }
  const auto refs_bytes = static_cast<std::int64_t>(refs.size() * sizeof(LoraPairRef));
  moved.refs_storage_ = Buffer(backend.allocator(), refs_bytes);
  backend.copy_to_device(Tensor(refs.data(), DType::kUInt8, {refs_bytes}),
                         moved.refs_storage_.view(DType::kUInt8, {refs_bytes}));
  return moved;
}

}  // namespace shoal
