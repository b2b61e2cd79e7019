// PeftConfig: adapter_config.json as PEFT writes it, or the reason why we cannot serve it. Used by load_adapter.
#pragma once

#include <re2/re2.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace shoal {

// What `alpha_pattern` says of the modules whose path, or the end of it, the expression matches.
struct AlphaPattern {
  std::unique_ptr<const RE2> module_path;
  double alpha = 0.0;
};

struct PeftConfig {
  double alpha = 0.0;
  bool use_rslora = false;
  std::vector<AlphaPattern> alpha_patterns;  // the first that matches counts

  // alpha / rank, or alpha / sqrt(rank) with rsLoRA, with the alpha that the module's pattern gives.
  float scale_of(std::string_view module_path, std::int64_t rank) const;
};

// Errors: kAdapterNotFound without the file, kAdapterInvalid naming the key for everything but plain LoRA.
Result<PeftConfig> read_peft_config(const std::filesystem::path& directory);

}  // namespace shoal
