// The small JSON files beside a model that say which tokens are special. Used by Tokenizer and ChatTemplate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace shoal {

// The whole file; nothing if it does not exist. Throws StartError if it is unreadable or larger than `max_bytes`.
std::optional<std::string> read_text_file(const std::filesystem::path& path, std::uintmax_t max_bytes);

// The object in a JSON file, empty if there is no such file. Throws StartError if it is not a JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path);

// tokenizer_config.json; what it lacks comes from special_tokens_map.json.
struct TokenizerConfig {
  nlohmann::json json;
  std::map<std::string, std::string> special_tokens;  // "eos_token" -> "</s>", for each named token that is set

  static TokenizerConfig read(const std::filesystem::path& model_dir);
  static TokenizerConfig read_file(const std::filesystem::path& config_file);
  std::string special_token(const std::string& name) const;  // "" if it is not set
};

// The end tokens that generation_config.json and config.json state (`eos_token_id`: a number or a list).
std::vector<std::int64_t> configured_eos_ids(const std::filesystem::path& model_dir);

}  // namespace shoal
