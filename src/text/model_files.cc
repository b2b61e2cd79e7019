#include "text/model_files.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "core/result.h"

namespace shoal {
namespace {

constexpr std::uintmax_t kMaxConfigBytes = std::uintmax_t{64} << 20;

// A token is written as its text or as an object with `content`.
std::optional<std::string> token_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

void collect_special_tokens(const nlohmann::json& json, std::map<std::string, std::string>& tokens) {
  for (const auto& [key, value] : json.items()) {
    if (!key.ends_with("_token")) continue;
    if (auto text = token_text(value)) tokens.emplace(key, std::move(*text));
  }
}

}  // namespace

std::optional<std::string> read_text_file(const std::filesystem::path& path, std::uintmax_t max_bytes) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return std::nullopt;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, code);
  if (code) throw StartError(fmt::format("{}: {}", path.string(), code.message()));
  if (file_bytes > max_bytes) {
    throw StartError(fmt::format("{}: {} bytes, at most {} are accepted", path.string(), file_bytes, max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw StartError(fmt::format("{}: cannot be read", path.string()));
  return text;
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  const auto text = read_text_file(path, kMaxConfigBytes);
  if (!text) return nlohmann::json::object();
  try {
    auto json = nlohmann::json::parse(*text);
    if (!json.is_object()) throw StartError(fmt::format("{}: not a JSON object", path.string()));
    return json;
  } catch (const nlohmann::json::exception& error) {
    // The library's texts begin with "[json.exception.parse_error.101] ", which tells nobody anything.
    const std::string_view what = error.what();
    throw StartError(fmt::format("{}: {}", path.string(), what.substr(what.find(' ') + 1)));
  }
}

TokenizerConfig TokenizerConfig::read_file(const std::filesystem::path& config_file) {
  TokenizerConfig config;
  config.json = read_json_object(config_file);
  collect_special_tokens(config.json, config.special_tokens);
  return config;
}

TokenizerConfig TokenizerConfig::read(const std::filesystem::path& model_dir) {
  TokenizerConfig config = read_file(model_dir / "tokenizer_config.json");
  collect_special_tokens(read_json_object(model_dir / "special_tokens_map.json"), config.special_tokens);
  return config;
}

std::string TokenizerConfig::special_token(const std::string& name) const {
  const auto found = special_tokens.find(name);
  return found == special_tokens.end() ? std::string() : found->second;
}

std::vector<std::int64_t> configured_eos_ids(const std::filesystem::path& model_dir) {
  std::vector<std::int64_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const nlohmann::json json = read_json_object(model_dir / name);
    const auto found = json.find("eos_token_id");
    if (found == json.end() || found->is_null()) continue;
    const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
    for (const auto& id : list) {
      if (!id.is_number_integer()) {
        throw StartError(fmt::format("{}: eos_token_id is {}, expected a whole number or a list of them",
                                     (model_dir / name).string(), found->dump()));
      }
      ids.push_back(id.get<std::int64_t>());
    }
  }
  return ids;
}

}  // namespace shoal
