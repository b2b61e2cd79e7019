// How the merged change of one weight is kept as a LoRA pair. Used by merge_adapters.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/adapter_merge.h"
#include "core/result.h"
#include "lora/lora_targets.h"
#include "ops/lora.h"

namespace shoal {

// A member's part in one target.
struct PairMember {
  LoraPair pair;           // as load_adapter made it
  float weight = 0.0F;     // in the merge
  std::uint64_t seed = 0;  // of the elements that DARE drops
};

enum class PairForm : std::uint8_t {
  kConcatenated,  // the members' ranks one after the other: exact for a linear merge
  kWhole,         // the change itself beside a unit matrix: exact for all
  kProjected,     // the change projected on as many directions as the members have ranks
};

// What one target takes.
struct PairPlan {
  PairForm form = PairForm::kConcatenated;
  std::int64_t rank = 0;
  DType dtype = DType::kFloat32;
  float scale = 1.0F;

  std::int64_t a_bytes(const LoraTarget& target) const;  // both rounded up to 16
  std::int64_t b_bytes(const LoraTarget& target) const;
};

// How much of the merged changes the pairs hold, in squared elements.
struct MergeShare {
  double all = 0.0;
  double kept = 0.0;
};

// `members` are those that have the target, at least one. Exact wherever `most_rank` allows it.
// Refused with kAdapterInvalid: ranks that add up to more than that where nothing exact fits into it.
Result<PairPlan> plan_pair(std::span<const PairMember> members, const AdapterMerge& merge, const LoraTarget& target,
                           std::int64_t most_rank);

// Fills pair.a [rank, in] and pair.b [rank, out] of the plan's dtype, and its scale. False: a value is not finite, or
// `stopped` said so.
bool fill_pair(const PairPlan& plan, std::span<const PairMember> members, const AdapterMerge& merge,
               const LoraTarget& target, const std::function<bool()>& stopped, LoraPair& pair, MergeShare& share);

}  // namespace shoal
