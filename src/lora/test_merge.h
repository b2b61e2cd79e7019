// Adapters with drawn values, and merges of their changes in double, the slow and plain way. Used by tests of merges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/adapter_merge.h"
#include "core/buffer.h"
#include "lora/adapter_weights.h"

namespace shoal {

using Dense = std::vector<double>;  // [out, in] row-major, rows in the order of PEFT's file

class TestAdapter {
 public:
  // ranks[target]; 0: it does not have that target. Values are drawn from `seed`.
  TestAdapter(const LoraTargets& targets, std::vector<std::int64_t> ranks, float scale, DType dtype,
              std::uint32_t seed);

  // Valid while this lives.
  AdapterWeights weights() const;
  bool has(std::int32_t target) const { return ranks_[static_cast<std::size_t>(target)] > 0; }
  Dense change(std::int32_t target) const;
  // The same change, by pairs of twice the rank whose other half is zero.
  TestAdapter with_idle_ranks() const;
  // All values become this one.
  void fill(float value);

 private:
  const LoraTargets& targets_;
  std::vector<std::int64_t> ranks_;
  float scale_;
  DType dtype_;
  std::vector<Buffer> a_, b_;  // by target: [rank, in] and [rank, out]
  Buffer all_;                 // what weights() says it holds
};

// B A scale in double.
Dense product_of(const LoraPair& pair, const LoraTarget& target);

// What docs/merged-adapters.md says, on whole matrices.
Dense merge_in_double(std::vector<Dense> changes, const std::vector<float>& weights,
                      const std::vector<std::uint64_t>& seeds, const AdapterMerge& merge);
std::uint64_t reference_seed(const AdapterMerge& merge, const std::string& path, std::size_t member);

// D projected on the image of the members' A, all in double.
Dense project_in_double(const Dense& delta, const std::vector<LoraPair>& members, const LoraTarget& target);

// Relative to the largest element of `expected`.
double worst_difference(const Dense& found, const Dense& expected);

}  // namespace shoal
