// RuntimeAdapters: names that tenants gave to adapters while the server runs (POST /v1/load_lora_adapter), and who
// still uses what they stand for. Part of ServerContext; used through adapter_names.h and by load_adapter.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/adapter_key.h"

namespace shoal {

// A use of an adapter that was loaded under some name: by the name itself, by a load, by a request. Copies are the same
// use. When the last of an adapter's uses ends its memory is given back.
using AdapterLease = std::shared_ptr<const void>;

struct RuntimeAdapter {
  AdapterKey target;  // with the token that it was loaded with; requests bring their own
  AdapterLease lease;
};

// Safe to use from several threads at once.
class RuntimeAdapters {
 public:
  using Forget = std::function<void(const AdapterKey&)>;
  enum class Replace : std::uint8_t { kNo, kYes };
  enum class Added : std::uint8_t { kAdded, kNameTaken, kTooMany };

  // Names of all tenants whose names cannot be made up at will, those of keys, count for themselves; all others share
  // a limit besides.
  static constexpr std::int64_t kMaxOfOpenTenants = 16'384;

  // `forget` gives back an adapter's memory; empty: there is none to give back.
  RuntimeAdapters(std::int64_t max_of_tenant, Forget forget);

  AdapterLease lease(const AdapterKey& target);
  // A request for `key` that used no name: others than the name's users have a claim on its memory, so it stays until
  // it is the longest unused, as that of any adapter.
  void note_direct_use(const AdapterKey& key);

  // What add() would answer now.
  Added would_add(const std::string& tenant, const std::string& name, Replace replace) const;
  Added add(const std::string& tenant, const std::string& name, RuntimeAdapter adapter, Replace replace);
  bool remove(const std::string& tenant, const std::string& name);  // false: there is none
  std::optional<RuntimeAdapter> find(const std::string& tenant, const std::string& name) const;
  // Names, sorted, and what they stand for.
  std::vector<std::pair<std::string, AdapterKey>> list(const std::string& tenant) const;

 private:
  struct Use;
  using Names = std::map<std::string, RuntimeAdapter>;

  Added would_add_locked(const std::string& tenant, const std::string& name, Replace replace) const;

  const std::int64_t max_of_tenant_;
  // Shared with the uses, which may outlive this.
  const std::shared_ptr<const Forget> forget_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<std::string, Names> by_tenant_;  // none empty
  std::int64_t num_of_open_tenants_ = 0;
  std::map<std::string, std::weak_ptr<Use>> uses_;  // by name_of(key)
};

}  // namespace shoal
