// LoraTargets: every linear part of a model that an adapter may change, by the name PEFT gives it.
// Filled by Linear while a model loads; read by the adapter loader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weights/row_order.h"

namespace shoal {

struct LoraTarget {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  std::vector<RowRange> row_order;  // B's rows in the order of our base weight; empty: as they are
};

class LoraTargets {
 public:
  std::int32_t add(LoraTarget target);
  std::optional<std::int32_t> find(std::string_view path) const;
  const LoraTarget& at(std::int32_t target_id) const;
  std::int64_t size() const { return static_cast<std::int64_t>(targets_.size()); }

 private:
  std::vector<LoraTarget> targets_;
  std::unordered_map<std::string, std::int32_t> by_path_;
};

}  // namespace shoal
