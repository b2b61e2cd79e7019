// MergedAdapters: the field `merged_adapters` as it was sent, and the merge that it asks for. Used by parse_request.cc
// and validate.cc.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/adapter_merge.h"
#include "server/field_reader.h"

namespace shoal {

struct MergedAdapters {
  std::vector<std::string> ids;
  std::vector<float> weights;
  std::optional<std::string> merge_strategy;
  std::optional<float> density;
  std::optional<std::string> majority_sign_method;
};

// Absent and null are none.
void read_merged_adapters(FieldReader& reader, std::optional<MergedAdapters>& merged);

// Checked in LoRAX's order: how many ids, as many weights; then what LoRAX lets pass. Whether the ids can be such is
// not looked at. What a strategy does not read stands at its default, so that it tells no two merges apart.
std::variant<AdapterMerge, ApiError> make_merge(const MergedAdapters& merged);

}  // namespace shoal
