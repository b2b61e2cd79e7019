// write_projected: a merged change as a product of low rank. Used by merged_pair.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "lora/merged_delta.h"
#include "lora/merged_pair.h"

namespace shoal {

// pair.b [rank, out] becomes an orthonormal basis Q of what the change D makes of the members' A, pair.a [rank, in]
// becomes Q^T D; so their product is D projected on Q. That is one step of subspace iteration (Halko, Martinsson and
// Tropp, "Finding structure with randomness", 2011), begun where the members say that the change acts, in place of
// random directions. Where D has no larger rank than the members together and acts there, nothing is lost.
// Row `row` of D goes to column columns[row] of pair.b; both are float32. `rank` is the sum of the members' ranks.
// False: `stopped` said so.
bool write_projected(MergedDelta& delta, std::span<const std::int64_t> columns, const std::function<bool()>& stopped,
                     LoraPair& pair, MergeShare& share);

}  // namespace shoal
