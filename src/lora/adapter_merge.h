// merge_adapters: one adapter made of several, as docs/merged-adapters.md says. Used by the engine's loaders.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/adapter_merge.h"
#include "lora/adapter_weights.h"

namespace shoal {

struct MergeOptions {
  std::int64_t most_rank = 256;  // of the result, in any module
  int num_threads = 1;           // the caller's, and more that compute other modules meanwhile
  // Asked now and then while elements are computed, by any of the threads: true gives up.
  std::function<bool()> stopped = [] { return false; };
};

// `members` [ids of the merge] were loaded for these targets. An adapter without a module changes nothing there.
// `place` is asked once, before anything is computed.
// Refused with kAdapterInvalid: ranks that add up to more than the most where no exact form fits, results that are not
// finite, no place.
Result<AdapterWeights> merge_adapters(std::span<const AdapterWeights> members, const AdapterMerge& merge,
                                      const LoraTargets& targets, const PlaceAdapter& place,
                                      const MergeOptions& options = {});

}  // namespace shoal
