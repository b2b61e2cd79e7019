// The file of --api-key-file.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iomanip>
#include <sstream>

#include "core/result.h"
#include "server/api_keys.h"
#include "server/json.h"

namespace shoal {

namespace {

constexpr std::size_t kMaxKeyBytes = 512;
constexpr std::size_t kMaxTenantBytes = 128;
constexpr std::size_t kMaxPatternBytes = 512;
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{64} << 20;
constexpr const char* kTimeFormat = "%Y-%m-%dT%H:%M:%SZ";

// Texts without spaces, as headers can carry them.
bool is_visible(const std::string& text, std::size_t max_bytes) {
  return !text.empty() && text.size() <= max_bytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// One element of `keys`. Faults tell of its place and fields: what stands in them may be a secret.
class EntryReader {
 public:
  EntryReader(const InputJson& json, std::string place, const std::string& default_source)
      : json_(json), place_(std::move(place)), default_source_(default_source) {}

  ApiKeySet::Digest digest() const {
    const std::string key = text("key");
    const std::string hex = text("sha256");
    if (key.empty() == hex.empty()) fail("has both or neither of `key` and `sha256`, expected one of them");
    if (!key.empty()) {
      if (!is_visible(key, kMaxKeyBytes)) {
        fail(fmt::format("`key` must be 1 to {} visible ASCII characters without spaces", kMaxKeyBytes));
      }
      return ApiKeySet::digest_of(key);
    }
    const auto digest = ApiKeySet::digest_of_hex(hex);
    if (!digest) fail("`sha256` must be 64 digits of 0-9 and a-f");
    return *digest;
  }

  ApiKeyGrant grant() const {
    // A misspelt `adapters` would otherwise open them all.
    constexpr std::array<std::string_view, 5> kFields = {"key", "sha256", "tenant", "adapters", "expires"};
    for (const auto& [name, value] : json_.items()) {
      if (std::find(kFields.begin(), kFields.end(), name) == kFields.end()) {
        fail(fmt::format("has a field that is none of: {}", fmt::join(kFields, ", ")));
      }
    }
    const std::string tenant = text("tenant");
    if (!is_visible(tenant, kMaxTenantBytes)) {
      fail(fmt::format("`tenant` must be 1 to {} visible ASCII characters without spaces", kMaxTenantBytes));
    }
    return {.tenant = "key/" + tenant, .adapters = adapters(), .expires = expires()};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw StartError(fmt::format("{} {}", place_, what)); }

  // "" where it is absent.
  std::string text(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return "";
    if (!found->is_string()) fail(fmt::format("`{}` is no text", name));
    return found->get<std::string>();
  }

  std::shared_ptr<const AdapterRules> adapters() const {
    const auto found = json_.find("adapters");
    if (found == json_.end()) return nullptr;
    if (!found->is_array()) fail("`adapters` is no array of texts");
    std::vector<AdapterRules::Rule> rules;
    rules.reserve(found->size());
    for (const InputJson& element : *found) {
      if (!element.is_string()) fail("`adapters` is no array of texts");
      AdapterRules::Rule rule = AdapterRules::parse_rule(element.get<std::string>(), default_source_);
      if (!is_visible(rule.pattern, kMaxPatternBytes)) {
        fail(fmt::format("`adapters` must hold patterns of 1 to {} visible ASCII characters", kMaxPatternBytes));
      }
      rules.push_back(std::move(rule));
    }
    return std::make_shared<const AdapterRules>(std::move(rules));
  }

  std::optional<std::chrono::system_clock::time_point> expires() const {
    const auto found = json_.find("expires");
    if (found == json_.end()) return std::nullopt;
    const std::string given = text("expires");
    std::tm parts{};
    std::istringstream stream(given);
    stream >> std::get_time(&parts, kTimeFormat);
    const std::time_t time = timegm(&parts);
    // The way back tells of all that the parser lets pass: other widths, a February 31.
    if (stream.fail() || fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(time)) != given) {
      fail("`expires` must be a time such as 2027-01-31T00:00:00Z");
    }
    return std::chrono::system_clock::from_time_t(time);
  }

  const InputJson& json_;
  const std::string place_;
  const std::string& default_source_;
};

}  // namespace

ApiKeySet read_api_key_file(const std::filesystem::path& path, const std::string& default_source) {
  const std::string place = fmt::format("API key file {}:", path.string());
  const auto parsed = parse_json(read_small_file("API key file", path, kMaxFileBytes));
  // Not the parser's own words: they quote what it stumbled on.
  if (std::holds_alternative<JsonFault>(parsed)) throw StartError(place + " is no JSON");
  const auto& json = std::get<InputJson>(parsed);
  const bool has_keys = json.is_object() && json.size() == 1 && json.contains("keys") && json["keys"].is_array();
  if (!has_keys) throw StartError(place + R"( expected {"keys": [...]} and nothing else)");
  ApiKeySet keys;
  std::size_t number = 0;
  for (const InputJson& entry : json["keys"]) {
    const std::string at = fmt::format("{} key {}", place, ++number);
    if (!entry.is_object()) throw StartError(at + " is no object");
    const EntryReader reader(entry, at, default_source);
    ApiKeyGrant grant = reader.grant();
    if (!keys.add(reader.digest(), std::move(grant))) throw StartError(at + " stands there twice");
  }
  return keys;
}

}  // namespace shoal
