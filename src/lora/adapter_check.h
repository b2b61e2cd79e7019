// check_adapter: whether a model can serve an adapter, from the heads of its files. Used by cli/ for the list of
// models.
#pragma once

#include <filesystem>

#include "core/result.h"
#include "lora/lora_targets.h"

namespace shoal {

// Refuses what load_adapter would, with the same words, but for values that are not finite: no value is read.
Status check_adapter(const std::filesystem::path& directory, const LoraTargets& targets);

}  // namespace shoal
