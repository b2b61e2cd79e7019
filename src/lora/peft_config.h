// PeftConfig: adapter_config.json as PEFT writes it, or the reason why we cannot serve it. Used by load_adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"

namespace shoal {

struct PeftConfig {
  double alpha = 0.0;
  bool use_rslora = false;
  std::vector<std::pair<std::string, double>> alpha_pattern;  // keys match a module's end, or are regular expressions

  // alpha / rank, or alpha / sqrt(rank) with rsLoRA, with the alpha that the module's pattern gives.
  float scale_of(std::string_view module_path, std::int64_t rank) const;
};

// Errors: kAdapterNotFound without the file, kAdapterInvalid naming the key for everything but plain LoRA.
Result<PeftConfig> read_peft_config(const std::filesystem::path& directory);

}  // namespace shoal
