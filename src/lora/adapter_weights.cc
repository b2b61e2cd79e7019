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

namespace {

constexpr std::int64_t kAlignment = 16;

std::int64_t aligned(std::int64_t num_bytes) { return (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }

LoraPairRef ref_of(const LoraPair& pair) {
  if (!pair.a.defined()) return {};
  return {.a = pair.a.raw(),
          .b = pair.b.raw(),
          .scale = pair.scale,
          .rank = static_cast<std::int32_t>(pair.a.dim(0)),
          .dtype = static_cast<std::int32_t>(pair.a.dtype())};
}

}  // namespace

AdapterWeights::AdapterWeights(const Tensor& bytes, std::vector<LoraPair> pairs, const AdapterIdentity& identity)
    : bytes_(bytes), pairs_(std::move(pairs)), identity_(identity) {
  for (const LoraPair& pair : pairs_) {
    if (!pair.a.defined()) continue;
    ++num_modules_;
    max_rank_ = std::max(max_rank_, pair.a.dim(0));
  }
}

std::int64_t AdapterWeights::device_bytes(const Backend& backend) const {
  if (backend.device() == DeviceKind::kCpu) return num_bytes();
  return aligned(num_bytes()) + static_cast<std::int64_t>(pairs_.size() * sizeof(LoraPairRef));
}

AdapterWeights AdapterWeights::copy_to(const Backend& backend, std::byte* region) const {
  AdapterWeights copy = *this;
  copy.bytes_ = Tensor(region, DType::kUInt8, {num_bytes()});
  backend.copy_to_device(bytes_, copy.bytes_);
  const auto* begin = static_cast<const std::byte*>(bytes_.raw());
  const auto relocated = [&](const Tensor& tensor) {
    return Tensor(region + (static_cast<const std::byte*>(tensor.raw()) - begin), tensor.dtype(), tensor.shape());
  };
  for (LoraPair& pair : copy.pairs_) {
    if (!pair.a.defined()) continue;
    pair.a = relocated(pair.a);
    pair.b = relocated(pair.b);
  }
  if (backend.device() == DeviceKind::kCpu) return copy;
  std::vector<LoraPairRef> refs(copy.pairs_.size());
  std::transform(copy.pairs_.begin(), copy.pairs_.end(), refs.begin(), ref_of);
  const auto refs_bytes = static_cast<std::int64_t>(refs.size() * sizeof(LoraPairRef));
  const Tensor table(region + aligned(num_bytes()), DType::kUInt8, {refs_bytes});
  backend.copy_to_device(Tensor(refs.data(), DType::kUInt8, {refs_bytes}), table);
  copy.pair_refs_ = static_cast<const LoraPairRef*>(table.raw());
  return copy;
}

}  // namespace shoal
