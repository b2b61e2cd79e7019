#include "core/adapter_key.h"

#include <fmt/core.h>

#include <cstddef>

namespace shoal {

bool is_sum(const AdapterMerge& merge) {
  return merge.strategy == MergeStrategy::kLinear ||
         (merge.strategy == MergeStrategy::kDareLinear && merge.density >= 1.0F);
}

std::string_view strategy_name(MergeStrategy strategy) {
  switch (strategy) {
    case MergeStrategy::kLinear:
      return "linear";
    case MergeStrategy::kTies:
      return "ties";
    case MergeStrategy::kDareLinear:
      return "dare_linear";
    case MergeStrategy::kDareTies:
      return "dare_ties";
  }
  return "";
}

// Each id with its length, so that none can look like two; floats in hexadecimal, so that none is rounded.
std::string merge_text(const AdapterMerge& merge) {
  std::string text = fmt::format("{} {:a} {}", strategy_name(merge.strategy), merge.density,
                                 merge.election == SignElection::kTotal ? "total" : "frequency");
  for (std::size_t i = 0; i < merge.ids.size(); ++i) {
    text += fmt::format(" {:a} {}:{}", merge.weights[i], merge.ids[i].size(), merge.ids[i]);
  }
  return text;
}

std::string name_of(const AdapterKey& key) {
  std::string name = key.source;
  name.push_back('\0');
  name += key.id;
  name.push_back('\0');
  name += key.api_token;
  if (key.merge) {
    name.push_back('\0');
    name += merge_text(*key.merge);
  }
  return name;
}

bool is_slow(const AdapterKey& key) { return key.merge && !is_sum(*key.merge); }

AdapterKey member_key(const AdapterKey& key, std::size_t index) {
  AdapterKey member = key;
  member.id = key.merge->ids.at(index);
  member.merge.reset();
  return member;
}

}  // namespace shoal
