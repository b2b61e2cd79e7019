#include "weights/config_reader.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "weights/json_text.h"
#include "weights/start_error.h"

namespace shoal {
namespace {

constexpr std::int64_t kMaxConfigBytes = 16 << 20;
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kAnInteger = "an integer";
constexpr std::string_view kASize = "an integer from 1 to 2^31 - 1";
constexpr std::string_view kANumber = "a finite number";
constexpr std::string_view kABool = "true or false";
constexpr std::string_view kAString = "a string";

}  // namespace

ConfigReader::ConfigReader(std::shared_ptr<const nlohmann::json> document, const nlohmann::json* object,
                           std::string file, std::string prefix)
    : document_(std::move(document)), object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

ConfigReader ConfigReader::from_file(const std::string& path) {
  return parse(read_text_file(path, kMaxConfigBytes), path);
}

ConfigReader ConfigReader::parse(std::string_view text, const std::string& file) {
  auto document = std::make_shared<const nlohmann::json>(parse_json_object(text, file, DuplicateKeys::kLastCounts));
  const nlohmann::json* object = document.get();
  return ConfigReader(std::move(document), object, file, "");
}

std::optional<ConfigReader::Entry> ConfigReader::find(const ConfigKeys& keys) const {
  std::optional<Entry> found;
  for (const std::string_view key : keys.spellings()) {
    const auto position = object_->find(key);
    if (position == object_->end() || position->is_null()) continue;
    if (!found.has_value()) {
      found = Entry{.key = key, .value = &*position};
    } else if (*found->value != *position) {
      throw_mismatch(file_, fmt::format("keys {0}{1} and {0}{2}", prefix_, found->key, key),
                     {.found = fmt::format("{} and {}", describe_json(*found->value), describe_json(*position)),
                      .expected = "the same value, since they mean the same"});
    }
  }
  return found;
}

void ConfigReader::fail_type(std::string_view key, const nlohmann::json& value, std::string_view expected) const {
  throw_mismatch(file_, fmt::format("key {}{}", prefix_, printable(key)),
                 {.found = describe_json(value), .expected = expected});
}

void ConfigReader::fail_missing(const ConfigKeys& keys, std::string_view expected) const {
  throw_mismatch(file_, fmt::format("key {}{}", prefix_, fmt::join(keys.spellings(), fmt::format(" or {}", prefix_))),
                 {.found = "nothing", .expected = expected});
}

void ConfigReader::refuse(std::string_view key, std::string_view expected) const {
  const std::optional<Entry> entry = find(key);
  if (!entry.has_value()) fail_missing(key, expected);
  fail_type(key, *entry->value, expected);
}

bool ConfigReader::has(const ConfigKeys& keys) const { return find(keys).has_value(); }

bool ConfigReader::is_string(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  return entry.has_value() && entry->value->is_string();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_->items()) {
    if (!value.is_null()) keys.push_back(key);
  }
  return keys;
}

std::int64_t ConfigReader::to_int(std::string_view key, const nlohmann::json& value, std::string_view expected) const {
  const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
  if (!value.is_number_integer() || !fits) fail_type(key, value, expected);
  return value.get<std::int64_t>();
}

std::optional<std::int64_t> ConfigReader::find_int(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  return to_int(entry->key, *entry->value, kAnInteger);
}

std::int64_t ConfigReader::required_int(const ConfigKeys& keys) const {
  const std::optional<std::int64_t> value = find_int(keys);
  if (!value.has_value()) fail_missing(keys, kAnInteger);
  return *value;
}

std::optional<std::int64_t> ConfigReader::find_size(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  const std::int64_t value = to_int(entry->key, *entry->value, kASize);
  if (value < 1 || value > kMaxSize) fail_type(entry->key, *entry->value, kASize);
  return value;
}

std::int64_t ConfigReader::required_size(const ConfigKeys& keys) const {
  const std::optional<std::int64_t> value = find_size(keys);
  if (!value.has_value()) fail_missing(keys, kASize);
  return *value;
}

std::optional<double> ConfigReader::find_float(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  if (!entry->value->is_number()) fail_type(entry->key, *entry->value, kANumber);
  return entry->value->get<double>();
}

double ConfigReader::required_float(const ConfigKeys& keys) const {
  const std::optional<double> value = find_float(keys);
  if (!value.has_value()) fail_missing(keys, kANumber);
  return *value;
}

std::optional<bool> ConfigReader::find_bool(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  if (!entry->value->is_boolean()) fail_type(entry->key, *entry->value, kABool);
  return entry->value->get<bool>();
}

bool ConfigReader::required_bool(const ConfigKeys& keys) const {
  const std::optional<bool> value = find_bool(keys);
  if (!value.has_value()) fail_missing(keys, kABool);
  return *value;
}

std::optional<std::string> ConfigReader::find_string(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  if (!entry->value->is_string()) fail_type(entry->key, *entry->value, kAString);
  return entry->value->get<std::string>();
}

std::string ConfigReader::optional_string(const ConfigKeys& keys, std::string_view value) const {
  return find_string(keys).value_or(std::string(value));
}

std::string ConfigReader::required_string(const ConfigKeys& keys) const {
  std::optional<std::string> value = find_string(keys);
  if (!value.has_value()) fail_missing(keys, kAString);
  return *std::move(value);
}

std::vector<std::int64_t> ConfigReader::optional_int_list(const ConfigKeys& keys) const {
  constexpr std::string_view kExpected = "a list of integers";
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return {};
  if (!entry->value->is_array()) fail_type(entry->key, *entry->value, kExpected);
  std::vector<std::int64_t> values;
  for (const nlohmann::json& item : *entry->value) values.push_back(to_int(entry->key, item, kExpected));
  return values;
}

std::vector<double> ConfigReader::optional_float_list(const ConfigKeys& keys) const {
  constexpr std::string_view kExpected = "a list of numbers";
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return {};
  if (!entry->value->is_array()) fail_type(entry->key, *entry->value, kExpected);
  std::vector<double> values;
  for (const nlohmann::json& item : *entry->value) {
    if (!item.is_number()) fail_type(entry->key, item, kExpected);
    values.push_back(item.get<double>());
  }
  return values;
}

std::vector<std::string> ConfigReader::optional_string_list(const ConfigKeys& keys) const {
  constexpr std::string_view kExpected = "a list of strings";
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return {};
  if (!entry->value->is_array()) fail_type(entry->key, *entry->value, kExpected);
  std::vector<std::string> values;
  for (const nlohmann::json& item : *entry->value) {
    if (!item.is_string()) fail_type(entry->key, item, kExpected);
    values.push_back(item.get<std::string>());
  }
  return values;
}

std::vector<std::int64_t> ConfigReader::optional_int_or_list(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return {};
  if (entry->value->is_array()) return optional_int_list(entry->key);
  return {to_int(entry->key, *entry->value, "an integer or a list of integers")};
}

std::optional<ConfigReader> ConfigReader::optional_object(const ConfigKeys& keys) const {
  const std::optional<Entry> entry = find(keys);
  if (!entry.has_value()) return std::nullopt;
  if (!entry->value->is_object()) fail_type(entry->key, *entry->value, "an object");
  return ConfigReader(document_, entry->value, file_, fmt::format("{}{}.", prefix_, entry->key));
}

}  // namespace shoal
