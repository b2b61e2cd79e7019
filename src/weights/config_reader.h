// ConfigReader: strict reading of config.json, adapter_config.json and generation_config.json. Used by models/,
// lora/ and the engine. A key that is missing or wrong is a StartError that names file, key, found and expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// One key, or its spellings. Spellings that are present together must agree.
class ConfigKeys {
 public:
  ConfigKeys(const char* key) : keys_{key} {}         // NOLINT(google-explicit-constructor)
  ConfigKeys(std::string_view key) : keys_{key} {}    // NOLINT(google-explicit-constructor)
  ConfigKeys(const std::string& key) : keys_{key} {}  // NOLINT(google-explicit-constructor)
  ConfigKeys(std::initializer_list<std::string_view> spellings) : keys_(spellings) {}

  const std::vector<std::string_view>& spellings() const { return keys_; }

 private:
  std::vector<std::string_view> keys_;
};

// `null` counts as absent everywhere. `find_*` give nullopt for an absent key, `optional_*` the caller's value,
// `required_*` throw. A present key of the wrong type always throws. Integers are also floats, never the reverse.
class ConfigReader {
 public:
  // Reads a file; StartError when it is missing, malformed or not an object.
  static ConfigReader from_file(const std::string& path);
  // The same from text; `file` stands in messages.
  static ConfigReader parse(std::string_view text, const std::string& file);

  const std::string& file() const { return file_; }
  // "rope_scaling." for a nested reader, empty at the top.
  const std::string& prefix() const { return prefix_; }

  bool has(const ConfigKeys& keys) const;
  bool is_string(const ConfigKeys& keys) const;
  // Keys whose value is not null, ascending: for maps such as alpha_pattern.
  std::vector<std::string> keys() const;

  std::optional<std::int64_t> find_int(const ConfigKeys& keys) const;
  std::int64_t optional_int(const ConfigKeys& keys, std::int64_t value) const { return find_int(keys).value_or(value); }
  std::int64_t required_int(const ConfigKeys& keys) const;

  // A count or extent: 1 .. 2^31 - 1.
  std::optional<std::int64_t> find_size(const ConfigKeys& keys) const;
  std::int64_t optional_size(const ConfigKeys& keys, std::int64_t value) const {
    return find_size(keys).value_or(value);
  }
  std::int64_t required_size(const ConfigKeys& keys) const;

  std::optional<double> find_float(const ConfigKeys& keys) const;
  double optional_float(const ConfigKeys& keys, double value) const { return find_float(keys).value_or(value); }
  double required_float(const ConfigKeys& keys) const;

  std::optional<bool> find_bool(const ConfigKeys& keys) const;
  bool optional_bool(const ConfigKeys& keys, bool value) const { return find_bool(keys).value_or(value); }
  bool required_bool(const ConfigKeys& keys) const;

  std::optional<std::string> find_string(const ConfigKeys& keys) const;
  std::string optional_string(const ConfigKeys& keys, std::string_view value) const;
  std::string required_string(const ConfigKeys& keys) const;

  // Empty when absent, as for the layer lists of Solar.
  std::vector<std::int64_t> optional_int_list(const ConfigKeys& keys) const;
  std::vector<double> optional_float_list(const ConfigKeys& keys) const;
  std::vector<std::string> optional_string_list(const ConfigKeys& keys) const;
  // Keys that hold one value or a list of them: eos_token_id, layers_to_transform.
  std::vector<std::int64_t> optional_int_or_list(const ConfigKeys& keys) const;

  std::optional<ConfigReader> optional_object(const ConfigKeys& keys) const;

  // Throws StartError for a value that this program cannot serve: names the key, what stands there and `expected`.
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  struct Entry {
    std::string_view key;
    const nlohmann::json* value = nullptr;
  };

  ConfigReader(std::shared_ptr<const nlohmann::json> document, const nlohmann::json* object, std::string file,
               std::string prefix);

  std::optional<Entry> find(const ConfigKeys& keys) const;
  [[noreturn]] void fail_type(std::string_view key, const nlohmann::json& value, std::string_view expected) const;
  [[noreturn]] void fail_missing(const ConfigKeys& keys, std::string_view expected) const;
  std::int64_t to_int(std::string_view key, const nlohmann::json& value, std::string_view expected) const;

  // Shared: nested readers point into the one document and may outlive the outer reader.
  std::shared_ptr<const nlohmann::json> document_;
  const nlohmann::json* object_ = nullptr;
  std::string file_;
  std::string prefix_;
};

}  // namespace shoal
