#include "server/merged_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/http_format.h"

namespace shoal {

namespace {

constexpr std::size_t kMostMembers = 32;

ApiError invalid(const char* field, const std::string& what) {
  const std::string name = fmt::format("merged_adapters.{}", field);
  return {.failure = Failure::kValidation, .message = fmt::format("`{}` {}", name, what), .param = name};
}

std::optional<MergeStrategy> strategy_of(std::string_view name) {
  for (const MergeStrategy strategy :
       {MergeStrategy::kLinear, MergeStrategy::kTies, MergeStrategy::kDareLinear, MergeStrategy::kDareTies}) {
    if (name == strategy_name(strategy)) return strategy;
  }
  return std::nullopt;
}

std::optional<SignElection> election_of(std::string_view name) {
  if (name == "total") return SignElection::kTotal;
  if (name == "frequency") return SignElection::kFrequency;
  return std::nullopt;
}

}  // namespace

void read_merged_adapters(FieldReader& reader, std::optional<MergedAdapters>& merged) {
  const InputJson* value = reader.find("merged_adapters");
  if (value == nullptr) return;
  FieldReader fields = reader.inside("merged_adapters", *value);
  MergedAdapters read;
  if (value->is_object() && !value->contains("ids")) fields.fail("ids", "missing field");
  fields.read("ids", read.ids);
  fields.read("weights", read.weights);
  fields.read("merge_strategy", read.merge_strategy);
  fields.read("density", read.density);
  fields.read("majority_sign_method", read.majority_sign_method);
  merged = std::move(read);
}

std::variant<AdapterMerge, ApiError> make_merge(const MergedAdapters& merged) {
  if (merged.ids.empty()) return invalid("ids", "must name at least one adapter");
  if (merged.ids.size() != merged.weights.size()) {
    return invalid("weights",
                   fmt::format("must be as many as `ids`, given: {} and {}", merged.weights.size(), merged.ids.size()));
  }
  if (merged.ids.size() > kMostMembers) {
    return invalid("ids", fmt::format("may name at most {} adapters, given: {}", kMostMembers, merged.ids.size()));
  }
  if (!std::all_of(merged.weights.begin(), merged.weights.end(), [](float weight) { return std::isfinite(weight); })) {
    return invalid("weights", "must be finite numbers");
  }
  const std::string name = merged.merge_strategy.value_or("linear");
  const std::optional<MergeStrategy> strategy = strategy_of(lower_case(name));
  if (!strategy) {
    return invalid("merge_strategy", fmt::format("must be linear, ties, dare_linear or dare_ties, given: '{}'", name));
  }
  const std::string election_name = merged.majority_sign_method.value_or("total");
  const std::optional<SignElection> election = election_of(lower_case(election_name));
  if (!election) {
    return invalid("majority_sign_method", fmt::format("must be total or frequency, given: '{}'", election_name));
  }
  AdapterMerge merge{.ids = merged.ids, .weights = merged.weights, .strategy = *strategy};
  if (*strategy == MergeStrategy::kLinear) return merge;
  // Absent is 0 in LoRAX, which would drop all that the adapters change.
  const float density = merged.density.value_or(0.0F);
  if (!(density > 0.0F && density <= 1.0F)) {
    return invalid("density",
                   fmt::format("must be > 0.0 and <= 1.0 with {}: the share of elements that stay, given: {}",
                               strategy_name(*strategy), density));
  }
  merge.density = density;
  if (*strategy != MergeStrategy::kDareLinear) merge.election = *election;
  if (is_sum(merge)) merge.strategy = MergeStrategy::kLinear;
  return merge;
}

}  // namespace shoal
