#include "lora/peft_config.h"

#include <fmt/core.h>

#include <cmath>

#include "lora/adapter_files.h"
#include "weights/config_reader.h"
#include "weights/start_error.h"

namespace shoal {
namespace {

Error invalid(std::string message) { return {.code = ErrorCode::kAdapterInvalid, .message = std::move(message)}; }

constexpr std::size_t kMaxAlphaPatterns = 4096;  // more than any model has linear layers
constexpr std::int64_t kMaxPatternBytes = 32 << 10;

// Switches of PEFT that change the result and that we do not serve. Absent, null and false are fine.
constexpr std::string_view kRefusedFlags[] = {"use_dora", "lora_bias", "use_qalora", "use_bdlora",
                                              "ensure_weight_tying"};
// Keys that do so by holding anything at all.
constexpr std::string_view kRefusedValues[] = {"modules_to_save",         "layer_replication",
                                               "trainable_token_indices", "alora_invocation_tokens",
                                               "target_parameters",       "arrow_config"};

Status check_kind(const ConfigReader& config) {
  const std::string kind = config.required_string("peft_type");
  if (kind != "LORA") return invalid(fmt::format("peft_type is {}, expected LORA", printable(kind)));
  const std::string bias = config.optional_string("bias", "none");
  if (bias != "none") return invalid(fmt::format("bias is {}, expected none", printable(bias)));
  for (const std::string_view flag : kRefusedFlags) {
    if (config.optional_bool(flag, false)) return invalid(fmt::format("{} is true, which is not supported", flag));
  }
  for (const std::string_view key : kRefusedValues) {
    if (config.has(key)) return invalid(fmt::format("{} is set, which is not supported", key));
  }
  return Ok{};
}

// The file's regular expressions are untrusted: RE2 matches in linear time, and number and memory are bounded here.
Status read_alpha_patterns(const ConfigReader& config, std::vector<AlphaPattern>& alpha_patterns) {
  const std::optional<ConfigReader> patterns = config.optional_object("alpha_pattern");
  if (!patterns) return Ok{};
  const std::vector<std::string> keys = patterns->keys();
  if (keys.size() > kMaxAlphaPatterns) {
    return invalid(fmt::format("alpha_pattern has {} keys, at most {} are accepted", keys.size(), kMaxAlphaPatterns));
  }
  RE2::Options options(RE2::Quiet);
  options.set_max_mem(kMaxPatternBytes);
  for (const std::string& key : keys) {
    // A key is a whole path, its end, or an expression for either.
    auto pattern = std::make_unique<const RE2>(fmt::format("(?:.*\\.)?(?:{})", key), options);
    if (!pattern->ok()) {
      return invalid(fmt::format("alpha_pattern key {} is refused: {}", printable(key), printable(pattern->error())));
    }
    alpha_patterns.push_back({.module_path = std::move(pattern), .alpha = patterns->required_float(key)});
  }
  return Ok{};
}

}  // namespace

float PeftConfig::scale_of(std::string_view module_path, std::int64_t rank) const {
  double module_alpha = alpha;
  const re2::StringPiece path(module_path.data(), module_path.size());
  for (const AlphaPattern& pattern : alpha_patterns) {
    if (!RE2::FullMatch(path, *pattern.module_path)) continue;
    module_alpha = pattern.alpha;
    break;
  }
  const auto divisor = static_cast<double>(rank);
  return static_cast<float>(module_alpha / (use_rslora ? std::sqrt(divisor) : divisor));
}

Result<PeftConfig> read_peft_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kAdapterConfigFile;
  if (!std::filesystem::exists(path)) {
    return Error{.code = ErrorCode::kAdapterNotFound, .message = fmt::format("{} does not exist", path.string())};
  }
  const ConfigReader config = ConfigReader::from_file(path.string());
  const Status kind = check_kind(config);
  if (!kind.ok()) return kind.error();
  PeftConfig peft;
  peft.alpha = config.required_float("lora_alpha");
  peft.use_rslora = config.optional_bool("use_rslora", false);
  const Status patterns = read_alpha_patterns(config, peft.alpha_patterns);
  if (!patterns.ok()) return patterns.error();
  return peft;
}

}  // namespace shoal
