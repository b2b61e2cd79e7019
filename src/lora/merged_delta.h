// MergedDelta: the change that a merge makes to one weight, a few rows at a time. Used by merged_pair.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/adapter_merge.h"

namespace shoal {

// What one adapter changes in the weight: `b` x `a`.
struct MergeMember {
  std::int64_t rank = 0;
  std::vector<float> a;    // [rank, in]
  std::vector<float> b;    // [out, rank], its scale in it
  float weight = 0.0F;     // in the merge
  std::uint64_t seed = 0;  // of the elements that DARE drops
};

// The strategy applied to the members' changes, element by element, as it is defined for whole weights:
// linear       sum of weight x change
// ties         Yadav et al., "TIES-Merging", 2023: of each change the largest `density` elements stay; a sign is
// elected
//              for each element; the weighted elements of that sign are summed and divided by their number
// dare_linear  Yu et al., "Language Models are Super Mario", 2023: of each change elements stay with probability
//              `density` and are divided by it; then as linear
// dare_ties    the same, then as ties from the election on
// Nothing larger than a few rows of each change is ever held.
class MergedDelta {
 public:
  // Rows of the weight that for_rows() gives at once, but for the last ones.
  static constexpr std::int64_t kRows = 8;

  // `merge` outlives this. Looks at each change twice where its largest elements stay.
  MergedDelta(std::vector<MergeMember> members, const AdapterMerge& merge, std::int64_t in_features,
              std::int64_t out_features);

  // Calls use(first_row, values [rows, in]) for all rows of the weight in order; false from it ends that. What it is
  // given is the same every time, bit for bit.
  void for_rows(const std::function<bool(std::int64_t first_row, std::span<const float> values)>& use);

  std::span<const MergeMember> members() const { return members_; }

 private:
  // Which elements are the largest: those above `bits`, and the first `num_equal` that have them.
  struct Cut {
    std::uint32_t bits = 0;
    std::int64_t num_equal = 0;
  };

  Cut find_cut(const MergeMember& member);
  void keep_largest(Cut& left, std::span<float> values) const;
  void keep_drawn(const MergeMember& member, std::int64_t first_row, std::span<float> values) const;
  void add_up(std::size_t num_values);
  void add_elected(std::size_t num_values);

  const std::vector<MergeMember> members_;
  const AdapterMerge& merge_;
  const std::int64_t in_features_, out_features_;
  std::vector<Cut> cuts_;                    // by member, with ties
  std::vector<std::vector<float>> changes_;  // by member: [kRows, in]
  std::vector<float> merged_;                // [kRows, in]
};

}  // namespace shoal
