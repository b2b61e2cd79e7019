#include "server/api_keys.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/result.h"

namespace shoal {

namespace {

constexpr std::array<std::string_view, 4> kSources = {"local", "hub", "s3", "pbase"};

bool is_plain(const std::string& id) {
  if (id.empty() || std::any_of(id.begin(), id.end(), [](char c) { return c == '\0' || c == ','; })) return false;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = id.find('/', begin);
    const std::string part = id.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

}  // namespace

AdapterRules::Rule AdapterRules::parse_rule(std::string_view text, const std::string& default_source) {
  const std::size_t colon = text.find(':');
  const std::string_view source = text.substr(0, colon);
  // s3://bucket is an id.
  const bool names_source = colon != std::string_view::npos && !text.substr(colon + 1).starts_with("//") &&
                            std::find(kSources.begin(), kSources.end(), source) != kSources.end();
  if (!names_source) return {.source = default_source, .pattern = std::string(text)};
  return {.source = std::string(source), .pattern = std::string(text.substr(colon + 1))};
}

bool AdapterRules::allow(std::string_view source, const std::string& id) const {
  constexpr std::string_view kS3 = "s3://";
  if (!is_plain(id.starts_with(kS3) ? id.substr(kS3.size()) : id)) return false;
  return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
    return rule.source == source && fnmatch(rule.pattern.c_str(), id.c_str(), FNM_NOESCAPE) == 0;
  });
}

ApiKeySet::Digest ApiKeySet::digest_of(std::string_view key) {
  Digest digest{};
  unsigned int num_bytes = 0;
  CHECK_EQ(EVP_Digest(key.data(), key.size(), digest.data(), &num_bytes, EVP_sha256(), nullptr), 1);
  CHECK_EQ(num_bytes, digest.size());
  return digest;
}

std::optional<ApiKeySet::Digest> ApiKeySet::digest_of_hex(std::string_view hex) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Digest digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const std::size_t high = kDigits.find(hex[2 * i]);
    const std::size_t low = kDigits.find(hex[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    digest[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return digest;
}

bool ApiKeySet::add(const Digest& digest, ApiKeyGrant grant) {
  return grants_.emplace(digest, std::move(grant)).second;
}

const ApiKeyGrant* ApiKeySet::find(const Digest& digest) const {
  const auto found = grants_.find(digest);
  return found == grants_.end() ? nullptr : &found->second;
}

std::size_t ApiKeySet::Hash::operator()(const Digest& digest) const {
  std::size_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

bool ApiKeySet::Equal::operator()(const Digest& a, const Digest& b) const {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

ApiKeys::ApiKeys(Options options) : options_(std::move(options)), watch_({options_.file}) {
  if (options_.file.empty()) return;
  from_file_ = std::make_shared<const ApiKeySet>(read_api_key_file(options_.file, options_.default_source));
  spdlog::info("{} API keys in {}", from_file_->size(), options_.file.string());
  watch_.start(options_.poll_interval, [this] { read_again(); });
}

std::optional<ApiKeyGrant> ApiKeys::find(std::string_view key) const {
  std::shared_ptr<const ApiKeySet> from_file;
  {
    const std::lock_guard lock(mutex_);
    from_file = from_file_;
  }
  const ApiKeySet::Digest digest = ApiKeySet::digest_of(key);
  const ApiKeyGrant* grant = options_.fixed.find(digest);
  if (grant == nullptr && from_file != nullptr) grant = from_file->find(digest);
  return grant == nullptr ? std::nullopt : std::optional(*grant);
}

void ApiKeys::read_again() {
  try {
    auto keys = std::make_shared<const ApiKeySet>(read_api_key_file(options_.file, options_.default_source));
    spdlog::info("{} API keys in {}, which has changed", keys->size(), options_.file.string());
    const std::lock_guard lock(mutex_);
    from_file_ = std::move(keys);
  } catch (const std::exception& error) {
    ++num_failed_reads_;
    spdlog::error("the API keys stay as they were: {}", error.what());
  }
}

}  // namespace shoal
