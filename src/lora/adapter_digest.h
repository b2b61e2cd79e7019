// digest_of: the identity of an adapter's weights. Used by load_adapter.
#pragma once

#include <span>

#include "core/adapter_key.h"
#include "ops/lora.h"

namespace shoal {

// The first 128 bits of SHA-256 over all that an adapter does: which targets, shapes, dtypes, scales and values. Taken
// from the bytes in memory, so that it names what is served, whatever becomes of the files.
AdapterIdentity digest_of(std::span<const LoraPair> pairs);

}  // namespace shoal
