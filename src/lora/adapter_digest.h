// digest_of: the identity of an adapter's weights. seed_of: the seed of a merge's masks. Used by load_adapter and
// merge_adapters.
#pragma once

#include <span>
#include <string_view>

#include "core/adapter_key.h"
#include "ops/lora.h"

namespace shoal {

// The first 128 bits of SHA-256 over all that an adapter does: which targets, shapes, dtypes, scales and values. Taken
// from the bytes in memory, so that it names what is served, whatever becomes of the files.
AdapterIdentity digest_of(std::span<const LoraPair> pairs);

// The first 64 bits of SHA-256 of a text: a seed that is the same everywhere.
std::uint64_t seed_of(std::string_view text);

}  // namespace shoal
