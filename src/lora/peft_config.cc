#include "lora/peft_config.h"

#include <fmt/core.h>
#include <re2/re2.h>

#include <cmath>

#include "weights/config_reader.h"

namespace shoal {
namespace {

Error invalid(std::string message) { return {.code = ErrorCode::kAdapterInvalid, .message = std::move(message)}; }

// Switches of PEFT that change the result and that we do not serve. Absent, null and false are fine.
constexpr std::string_view kRefusedFlags[] = {"use_dora", "lora_bias", "use_qalora", "use_bdlora",
                                              "ensure_weight_tying"};
// Keys that do so by holding anything at all.
constexpr std::string_view kRefusedValues[] = {"modules_to_save",         "layer_replication",
                                               "trainable_token_indices", "alora_invocation_tokens",
                                               "target_parameters",       "arrow_config"};

Status check_kind(const ConfigReader& config) {
  const std::string kind = config.required_string("peft_type");
  if (kind != "LORA") return invalid(fmt::format("peft_type is {}, expected LORA", kind));
  const std::string bias = config.optional_string("bias", "none");
  if (bias != "none") return invalid(fmt::format("bias is {}, expected none", bias));
  for (const std::string_view flag : kRefusedFlags) {
    if (config.optional_bool(flag, false)) return invalid(fmt::format("{} is true, which is not supported", flag));
  }
  for (const std::string_view key : kRefusedValues) {
    if (config.has(key)) return invalid(fmt::format("{} is set, which is not supported", key));
  }
  return Ok{};
}

}  // namespace

float PeftConfig::scale_of(std::string_view module_path, std::int64_t rank) const {
  double module_alpha = alpha;
  for (const auto& [key, value] : alpha_pattern) {
    // The file's regular expressions are untrusted: RE2 runs in linear time.
    const RE2 pattern(fmt::format("(?:.*\\.)?(?:{})", key), RE2::Quiet);
    if (pattern.ok() && RE2::FullMatch(re2::StringPiece(module_path.data(), module_path.size()), pattern)) {
      module_alpha = value;
      break;
    }
  }
  const auto divisor = static_cast<double>(rank);
  return static_cast<float>(module_alpha / (use_rslora ? std::sqrt(divisor) : divisor));
}

Result<PeftConfig> read_peft_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "adapter_config.json";
  if (!std::filesystem::exists(path)) {
    return Error{.code = ErrorCode::kAdapterNotFound, .message = fmt::format("{} does not exist", path.string())};
  }
  const ConfigReader config = ConfigReader::from_file(path.string());
  const Status kind = check_kind(config);
  if (!kind.ok()) return kind.error();
  PeftConfig peft;
  peft.alpha = config.required_float("lora_alpha");
  peft.use_rslora = config.optional_bool("use_rslora", false);
  if (const std::optional<ConfigReader> patterns = config.optional_object("alpha_pattern")) {
    for (const std::string& key : patterns->keys()) {
      const RE2 pattern(fmt::format("(?:.*\\.)?(?:{})", key), RE2::Quiet);
      if (!pattern.ok()) return invalid(fmt::format("alpha_pattern key {} is no regular expression", key));
      peft.alpha_pattern.emplace_back(key, patterns->required_float(key));
    }
  }
  return peft;
}

}  // namespace shoal
