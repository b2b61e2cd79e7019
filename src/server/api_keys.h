// ApiKeySet: which keys a server knows, by their digests, and what each lets its holder do. ApiKeys: those of the flags
// and of a file that may change while the server runs. Used by caller.cc and the server's context.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/adapter_key.h"
#include "server/file_watch.h"

namespace shoal {

// Adapters by shell patterns: `*` any characters, also '/', `?` one of them, `[ab]` one of those.
class AdapterRules {
 public:
  struct Rule {
    std::string source;
    std::string pattern;
  };
  explicit AdapterRules(std::vector<Rule> rules) : rules_(std::move(rules)) {}

  // "SOURCE:PATTERN" with local, hub, s3 or pbase before the colon; all other texts are patterns of `default_source`.
  static Rule parse_rule(std::string_view text, const std::string& default_source);

  // Only ids in their plain form are: `a/../b`, `/a` or `a//b` may name what no pattern was written for.
  bool allow(std::string_view source, const std::string& id) const;

 private:
  std::vector<Rule> rules_;
};

struct ApiKeyGrant {
  std::string tenant = {};                            // as the scheduler tells tenants apart; "": the header names one
  std::shared_ptr<const AdapterRules> adapters = {};  // null: all; shared with the requests that a replaced file let in
  std::optional<std::chrono::system_clock::time_point> expires = {};
};

class ApiKeySet {
 public:
  using Digest = std::array<unsigned char, 32>;

  static Digest digest_of(std::string_view key);  // SHA-256
  static std::optional<Digest> digest_of_hex(std::string_view hex);

  // False when the key is there already.
  bool add(const Digest& digest, ApiKeyGrant grant);
  // Null when there is none. Its duration tells nothing about the keys: digests are looked up, not texts.
  const ApiKeyGrant* find(const Digest& digest) const;
  bool empty() const { return grants_.empty(); }
  std::size_t size() const { return grants_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const Digest& digest) const;
  };
  struct Equal {
    bool operator()(const Digest& a, const Digest& b) const;
  };
  std::unordered_map<Digest, ApiKeyGrant, Hash, Equal> grants_;
};

// docs/access.md describes the file. Throws StartError naming the file, the entry and what is wrong, never a key.
ApiKeySet read_api_key_file(const std::filesystem::path& path, const std::string& default_source);

class ApiKeys {
 public:
  struct Options {
    ApiKeySet fixed = {};             // of the flags; a key of both is theirs
    std::filesystem::path file = {};  // empty: none
    std::string default_source = "local";
    std::chrono::milliseconds poll_interval{1000};
  };

  // Reads the file, and looks at it from then on on a thread of its own: what it holds counts once it has changed and
  // can be read; until then the keys before it do. StartError where the first read fails.
  explicit ApiKeys(Options options);
  ~ApiKeys() = default;
  ApiKeys(const ApiKeys&) = delete;
  ApiKeys& operator=(const ApiKeys&) = delete;

  bool asked_for() const { return !options_.file.empty() || !options_.fixed.empty(); }
  std::optional<ApiKeyGrant> find(std::string_view key) const;  // any thread
  std::int64_t num_failed_reads() const { return num_failed_reads_; }

 private:
  void read_again();

  const Options options_;
  std::atomic<std::int64_t> num_failed_reads_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeySet> from_file_;  // guarded by mutex_; shared with lookups under way
  FileWatch watch_;                             // last: it uses all above
};

}  // namespace shoal
