#include "server/runtime_adapters.h"

namespace shoal {
namespace {

// Of an API key; see find_caller().
bool is_of_key(const std::string& tenant) { return tenant.starts_with("key/"); }

}  // namespace

struct RuntimeAdapters::Use {
  Use(AdapterKey key, std::shared_ptr<const Forget> forget) : key_(std::move(key)), forget_(std::move(forget)) {}
  ~Use() {
    if (*forget_ && !shared_.load()) (*forget_)(key_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  void share() { shared_.store(true); }

 private:
  const AdapterKey key_;
  const std::shared_ptr<const Forget> forget_;
  std::atomic<bool> shared_{false};
};

RuntimeAdapters::RuntimeAdapters(std::int64_t max_of_tenant, Forget forget)
    : max_of_tenant_(max_of_tenant), forget_(std::make_shared<const Forget>(std::move(forget))) {}

AdapterLease RuntimeAdapters::lease(const AdapterKey& target) {
  const std::lock_guard lock(mutex_);
  std::erase_if(uses_, [](const auto& use) { return use.second.expired(); });
  std::weak_ptr<Use>& known = uses_[name_of(target)];
  std::shared_ptr<Use> use = known.lock();
  if (use == nullptr) {
    use = std::make_shared<Use>(target, forget_);
    known = use;
  }
  return use;
}

void RuntimeAdapters::note_direct_use(const AdapterKey& key) {
  std::shared_ptr<Use> use;  // ends after the lock
  const std::lock_guard lock(mutex_);
  if (uses_.empty()) return;
  const auto found = uses_.find(name_of(key));
  if (found != uses_.end()) use = found->second.lock();
  if (use != nullptr) use->share();
}

RuntimeAdapters::Added RuntimeAdapters::would_add(const std::string& tenant, const std::string& name,
                                                  Replace replace) const {
  const std::lock_guard lock(mutex_);
  return would_add_locked(tenant, name, replace);
}

RuntimeAdapters::Added RuntimeAdapters::would_add_locked(const std::string& tenant, const std::string& name,
                                                         Replace replace) const {
  const auto names = by_tenant_.find(tenant);
  if (names != by_tenant_.end() && names->second.contains(name)) {
    return replace == Replace::kYes ? Added::kAdded : Added::kNameTaken;
  }
  const std::int64_t num_names = names == by_tenant_.end() ? 0 : std::ssize(names->second);
  const bool too_many =
      num_names >= max_of_tenant_ || (!is_of_key(tenant) && num_of_open_tenants_ >= kMaxOfOpenTenants);
  return too_many ? Added::kTooMany : Added::kAdded;
}

RuntimeAdapters::Added RuntimeAdapters::add(const std::string& tenant, const std::string& name, RuntimeAdapter adapter,
                                            Replace replace) {
  std::optional<RuntimeAdapter> replaced;  // its lease ends after the lock: it may call the engine
  const std::lock_guard lock(mutex_);
  const Added added = would_add_locked(tenant, name, replace);
  if (added != Added::kAdded) return added;
  const auto [place, is_new] = by_tenant_[tenant].try_emplace(name);
  if (!is_new) replaced = std::move(place->second);
  if (is_new && !is_of_key(tenant)) ++num_of_open_tenants_;
  place->second = std::move(adapter);
  return added;
}

bool RuntimeAdapters::remove(const std::string& tenant, const std::string& name) {
  std::optional<RuntimeAdapter> removed;  // as in add()
  const std::lock_guard lock(mutex_);
  const auto names = by_tenant_.find(tenant);
  if (names == by_tenant_.end()) return false;
  const auto found = names->second.find(name);
  if (found == names->second.end()) return false;
  removed = std::move(found->second);
  names->second.erase(found);
  if (names->second.empty()) by_tenant_.erase(names);
  if (!is_of_key(tenant)) --num_of_open_tenants_;
  return true;
}

std::optional<RuntimeAdapter> RuntimeAdapters::find(const std::string& tenant, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto names = by_tenant_.find(tenant);
  if (names == by_tenant_.end()) return std::nullopt;
  const auto found = names->second.find(name);
  return found == names->second.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::pair<std::string, AdapterKey>> RuntimeAdapters::list(const std::string& tenant) const {
  std::vector<std::pair<std::string, AdapterKey>> names;
  const std::lock_guard lock(mutex_);
  const auto found = by_tenant_.find(tenant);
  if (found == by_tenant_.end()) return names;
  for (const auto& [name, adapter] : found->second) names.emplace_back(name, adapter.target);
  return names;
}

}  // namespace shoal
