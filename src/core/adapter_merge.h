// AdapterMerge: adapters that one request wants merged into one, and how. A part of AdapterKey.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// docs/merged-adapters.md says what each computes.
enum class MergeStrategy : std::uint8_t { kLinear, kTies, kDareLinear, kDareTies };
// What elects the sign of an element of the change: the sum of what the adapters add to it, or their number.
enum class SignElection : std::uint8_t { kTotal, kFrequency };

struct AdapterMerge {
  std::vector<std::string> ids;  // at least one; the same one may stand there twice
  std::vector<float> weights;    // one an id, finite
  MergeStrategy strategy = MergeStrategy::kLinear;
  float density = 1.0F;                          // of all but linear: the share of elements that stay, in (0, 1]
  SignElection election = SignElection::kTotal;  // of ties and dare_ties

  bool operator==(const AdapterMerge&) const = default;
};

// Nothing is dropped and no sign elected: the changes are weighted and summed, which costs no more than reading them.
bool is_sum(const AdapterMerge& merge);

std::string_view strategy_name(MergeStrategy strategy);

// Equal texts are equal merges, and no others.
std::string merge_text(const AdapterMerge& merge);

}  // namespace shoal
