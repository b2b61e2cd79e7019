// AdapterReader: adapters, and merges of several, from their source into memory. Used by AdapterStore.
#pragma once

#include <cstdint>
#include <stop_token>

#include "lora/adapter_source.h"
#include "lora/adapter_weights.h"

namespace shoal {

// Safe to use from several threads at once.
class AdapterReader {
 public:
  struct Options {
    std::int64_t most_member_bytes = 0;  // of all members of a merge, which are held beside the result
    int num_merge_threads = 1;           // that compute one merge
  };

  // `source` and `targets` outlive this.
  AdapterReader(AdapterSource& source, const LoraTargets& targets, const Options& options)
      : source_(source), targets_(targets), options_(options) {}

  // A merge's follows those of its members.
  AdapterVersion version(const AdapterKey& key) const;
  // Once, whatever becomes of the files meanwhile. `stop` gives up a merge. Blocks; may throw what the source does.
  // Errors: those of the source and of load_adapter, of a merge with the member's name; those of merge_adapters.
  Result<AdapterWeights> read(const AdapterKey& key, const PlaceAdapter& place, const std::stop_token& stop) const;

 private:
  Result<AdapterWeights> read_merge(const AdapterKey& key, const PlaceAdapter& place,
                                    const std::stop_token& stop) const;

  AdapterSource& source_;
  const LoraTargets& targets_;
  const Options options_;
};

}  // namespace shoal
