#include "engine/adapter_tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace shoal {

AdapterTiers::AdapterTiers(AdapterTierOptions options)
    : options_(options), host_pool_(options.host_bytes), device_pool_(options.device_bytes) {
  stats_.device_limit_bytes = device_pool_.num_bytes();
  stats_.host_limit_bytes = host_pool_.num_bytes();
}

AdapterTiers::Id AdapterTiers::want(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) {
  std::string name = fmt::format("{:016x}", version.signature) + name_of(key);
  const auto found = by_name_.find(name);
  // Those who wait for a failed load are told; the next request tries again in an entry of its own.
  const bool known = found != by_name_.end() && !entry(found->second).error.has_value();
  const Id id = known ? found->second : add_entry(key, std::move(name), version);
  take_out(id);
  Entry& wanted = entry(id);
  if (wanted.device == Tier::kReady) {
    ++stats_.device_hits;
  } else if (wanted.host == Tier::kReady) {
    ++stats_.host_hits;
  }
  CHECK(wanted.wanted.insert(place).second);
  wanted.last_use = ++clock_;
  wanted.forgotten = false;
  put_back(id);
  return id;
}

void AdapterTiers::forget(const AdapterKey& key) {
  for (Id id = 0; id < static_cast<Id>(entries_.size()); ++id) {
    if (!entry(id).alive || entry(id).key != key) continue;
    entry(id).forgotten = true;
    leave_if_forgotten(id);
  }
}

AdapterTiers::Id AdapterTiers::add_entry(const AdapterKey& key, std::string name, const AdapterVersion& version) {
  Id id = static_cast<Id>(entries_.size());
  if (free_ids_.empty()) {
    entries_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  by_name_[name] = id;
  Entry& added = entry(id);
  added = Entry();
  added.key = key;
  added.name = std::move(name);
  added.host_bytes = version.file_bytes;
  added.alive = true;
  return id;
}

TierState AdapterTiers::state(Id id) const {
  const Entry& asked = entry(id);
  if (asked.error) return TierState::kFailed;
  if (asked.device == Tier::kReady) return asked.pinned.empty() ? TierState::kOnDevice : TierState::kInUse;
  const bool queued = asked.host == Tier::kReady && asked.device == Tier::kAbsent;
  // Those behind the one that found none have none either.
  const bool refused = queued && refused_ && !asked.wanted.empty() && !(*asked.wanted.begin() < refused_->first);
  return refused ? TierState::kNoRoom : TierState::kMoving;
}

const Error& AdapterTiers::error(Id id) const { return *entry(id).error; }

std::optional<std::int32_t> AdapterTiers::pin(Id id, const QueuePlace& place) {
  Entry& pinned = entry(id);
  if (pinned.device != Tier::kReady) return std::nullopt;
  take_out(id);
  CHECK_EQ(pinned.wanted.erase(place), 1U);
  if (pinned.pinned.empty()) stats_.pinned_bytes += BytePool::rounded(pinned.device_bytes);
  CHECK(pinned.pinned.insert(place).second);
  pinned.last_use = ++clock_;
  put_back(id);
  return pinned.slot;
}

std::optional<std::int32_t> AdapterTiers::release(Id id, const QueuePlace& place) {
  Entry& released = entry(id);
  take_out(id);
  std::optional<std::int32_t> freed_slot;
  if (released.pinned.erase(place) == 1) {
    if (released.pinned.empty()) {
      stats_.pinned_bytes -= BytePool::rounded(released.device_bytes);
      freed_slot = released.slot;
    }
  } else {
    CHECK_EQ(released.wanted.erase(place), 1U);
    // It waits no more, so nobody waits behind it. Whatever else changes, it stays refused until it is tried again: in
    // between others must not take the room that came free.
    if (refused_ == std::pair(place, id)) refused_.reset();
  }
  put_back(id);
  leave_if_forgotten(id);
  drop_if_unused(id);
  return freed_slot;
}

void AdapterTiers::keep(Id id) {
  CHECK(!entry(id).pinned.empty());
  if (kept_.insert(id).second) kept_bytes_ += BytePool::rounded(entry(id).device_bytes);
}

void AdapterTiers::take_out(Id id) {
  const Entry& moved = entry(id);
  for (Leavers* leavers : {&host_leavers_, &device_leavers_}) leavers->idle.erase({moved.last_use, id});
  if (moved.wanted.empty()) return;
  const std::pair<QueuePlace, Id> first{*moved.wanted.begin(), id};
  for (auto* queue : {&to_load_, &to_upload_, &host_leavers_.wanted, &device_leavers_.wanted}) queue->erase(first);
}

void AdapterTiers::put_back(Id id) {
  const Entry& moved = entry(id);
  if (moved.error) return;
  const auto may_leave = [&](Leavers& leavers) {
    if (moved.wanted.empty()) {
      leavers.idle.emplace(moved.last_use, id);
    } else {
      leavers.wanted.emplace(*moved.wanted.begin(), id);
    }
  };
  // A host copy is needed by nobody once the device has one.
  if (moved.host == Tier::kReady && !moved.uploading) {
    if (moved.device == Tier::kReady) {
      host_leavers_.idle.emplace(moved.last_use, id);
    } else {
      may_leave(host_leavers_);
    }
  }
  if (moved.device == Tier::kReady && moved.pinned.empty()) may_leave(device_leavers_);
  if (moved.wanted.empty() || moved.device != Tier::kAbsent) return;
  if (moved.host == Tier::kAbsent) to_load_.emplace(*moved.wanted.begin(), id);
  if (moved.host == Tier::kReady) to_upload_.emplace(*moved.wanted.begin(), id);
}

std::optional<AdapterTiers::Id> AdapterTiers::who_leaves(const Leavers& leavers, const QueuePlace& for_whom) {
  if (!leavers.idle.empty()) return leavers.idle.begin()->second;
  if (leavers.wanted.empty() || !(for_whom < leavers.wanted.rbegin()->first)) return std::nullopt;
  return leavers.wanted.rbegin()->second;
}

void AdapterTiers::evict_host(Id id) {
  take_out(id);
  Entry& evicted = entry(id);
  host_pool_.give_back(evicted.host_offset, evicted.host_bytes);
  evicted.host = Tier::kAbsent;
  --stats_.host_adapters;
  ++stats_.host_evictions;
  evicted_.push_back({.id = id});
  put_back(id);
  drop_if_unused(id);
}

void AdapterTiers::evict_device(Id id) {
  take_out(id);
  Entry& evicted = entry(id);
  CHECK(evicted.pinned.empty());
  device_pool_.give_back(evicted.device_offset, evicted.device_bytes);
  evicted.device = Tier::kAbsent;
  --stats_.device_adapters;
  ++stats_.device_evictions;
  evicted_.push_back({.id = id, .slot = evicted.slot});
  free_slots_.push_back(std::exchange(evicted.slot, -1));
  put_back(id);
  drop_if_unused(id);
}

std::optional<AdapterTiers::Move> AdapterTiers::next_load(Loads loads) {
  const auto is_due = [&](const std::pair<QueuePlace, Id>& waiting) {
    return loads == Loads::kAll || !is_slow(entry(waiting.second).key);
  };
  for (;;) {
    const auto first = std::find_if(to_load_.begin(), to_load_.end(), is_due);
    if (first == to_load_.end()) return std::nullopt;
    const auto [place, id] = *first;
    const std::int64_t num_bytes = entry(id).host_bytes;
    if (num_bytes > host_pool_.num_bytes()) {
      fail(id, {ErrorCode::kAdapterInvalid, fmt::format("adapter {} needs {} bytes, the whole host memory for adapters "
                                                        "is {}; raise --adapter-host-memory",
                                                        entry(id).key.id, num_bytes, host_pool_.num_bytes())});
      continue;
    }
    std::optional<std::int64_t> offset = host_pool_.take(num_bytes);
    while (!offset) {
      const std::optional<Id> leaver = who_leaves(host_leavers_, place);
      if (!leaver) return std::nullopt;  // what moves now will make room
      evict_host(*leaver);
      offset = host_pool_.take(num_bytes);
    }
    take_out(id);
    Entry& loading = entry(id);
    loading.host = Tier::kMoving;
    loading.host_offset = *offset;
    put_back(id);
    return Move{.id = id, .offset = *offset, .num_bytes = num_bytes};
  }
}

void AdapterTiers::load_done(Id id, std::int64_t host_bytes, std::int64_t device_bytes) {
  take_out(id);
  Entry& loaded = entry(id);
  CHECK(loaded.host == Tier::kMoving);
  CHECK_LE(host_bytes, loaded.host_bytes);
  const std::int64_t kept_bytes = BytePool::rounded(host_bytes);
  const std::int64_t spare_bytes = BytePool::rounded(loaded.host_bytes) - kept_bytes;
  if (spare_bytes > 0) host_pool_.give_back(loaded.host_offset + kept_bytes, spare_bytes);
  loaded.host_bytes = host_bytes;
  loaded.device_bytes = device_bytes;
  loaded.host = Tier::kReady;
  ++stats_.loads;
  ++stats_.host_adapters;
  // Where one was refused room, this one is behind it or will be refused itself: it has kNoRoom from here on.
  if (refused_) ++num_news_;
  put_back(id);
  if (std::string why = why_never_fits(loaded); !why.empty()) fail(id, {ErrorCode::kAdapterInvalid, std::move(why)});
  leave_if_forgotten(id);
}

// On the device, whoever else leaves.
std::string AdapterTiers::why_never_fits(const Entry& asked) const {
  const std::string kept = kept_.empty() ? "" : fmt::format(" beside {} preloaded ones", kept_.size());
  const std::int64_t most_bytes = device_pool_.num_bytes() - kept_bytes_;
  if (BytePool::rounded(asked.device_bytes) > most_bytes) {
    return fmt::format(
        "adapter {} needs {} bytes, the whole device memory for adapters{} is {}; raise "
        "--adapter-memory-fraction",
        asked.key.id, asked.device_bytes, kept, most_bytes);
  }
  if (std::ssize(kept_) >= options_.max_device_adapters) {
    return fmt::format("adapter {} finds no place{}; raise --max-active-adapters", asked.key.id, kept);
  }
  return "";
}

void AdapterTiers::load_failed(Id id, Error error) {
  ++stats_.failed_loads;
  fail(id, std::move(error));
}

void AdapterTiers::load_needs(Id id, std::int64_t host_bytes) {
  take_out(id);
  Entry& larger = entry(id);
  CHECK(larger.host == Tier::kMoving);
  CHECK_GT(host_bytes, larger.host_bytes);
  host_pool_.give_back(larger.host_offset, larger.host_bytes);
  larger.host = Tier::kAbsent;
  larger.host_bytes = host_bytes;
  put_back(id);
  drop_if_unused(id);
}

// Whatever it holds goes back at once; those who want it still read the error.
void AdapterTiers::fail(Id id, Error error) {
  take_out(id);
  Entry& failed = entry(id);
  if (failed.host == Tier::kReady) {
    --stats_.host_adapters;
    evicted_.push_back({.id = id});
  }
  if (failed.host != Tier::kAbsent) host_pool_.give_back(failed.host_offset, failed.host_bytes);
  failed.host = Tier::kAbsent;
  failed.error = std::move(error);
  ++num_news_;
  drop_if_unused(id);
}

std::optional<AdapterTiers::Move> AdapterTiers::next_upload() {
  const std::optional<std::pair<QueuePlace, Id>> refused_before = std::exchange(refused_, std::nullopt);
  if (to_upload_.empty()) return std::nullopt;
  const auto [place, id] = *to_upload_.begin();
  const std::int64_t num_bytes = entry(id).device_bytes;
  const auto has_slot = [&] { return !free_slots_.empty() || next_slot_ < options_.max_device_adapters; };
  // Where what is pinned leaves too little, nobody is evicted in vain.
  const bool hopeless = stats_.pinned_bytes + BytePool::rounded(num_bytes) > device_pool_.num_bytes();
  std::optional<std::int64_t> offset;
  while (hopeless || !has_slot() || !(offset = device_pool_.take(num_bytes))) {
    const std::optional<Id> leaver = hopeless ? std::nullopt : who_leaves(device_leavers_, place);
    if (!leaver) {
      refused_ = {place, id};  // nobody overtakes it: a smaller one would take the room that it waits for
      if (refused_ != refused_before) ++num_news_;
      return std::nullopt;
    }
    evict_device(*leaver);
  }
  take_out(id);
  Entry& uploading = entry(id);
  uploading.device = Tier::kMoving;
  uploading.uploading = true;
  uploading.device_offset = *offset;
  if (free_slots_.empty()) free_slots_.push_back(next_slot_++);
  uploading.slot = free_slots_.back();
  free_slots_.pop_back();
  put_back(id);
  return Move{.id = id, .offset = *offset, .num_bytes = num_bytes, .slot = uploading.slot};
}

void AdapterTiers::upload_done(Id id) {
  take_out(id);
  Entry& uploaded = entry(id);
  CHECK(uploaded.device == Tier::kMoving);
  uploaded.device = Tier::kReady;
  uploaded.uploading = false;
  ++stats_.uploads;
  ++stats_.device_adapters;
  ++num_news_;
  put_back(id);
  leave_if_forgotten(id);
}

void AdapterTiers::upload_failed(Id id, Error error) {
  take_out(id);
  Entry& failed = entry(id);
  CHECK(failed.device == Tier::kMoving);
  device_pool_.give_back(failed.device_offset, failed.device_bytes);
  failed.device = Tier::kAbsent;
  failed.uploading = false;
  free_slots_.push_back(std::exchange(failed.slot, -1));
  fail(id, std::move(error));
}

// What still moves leaves when it has arrived.
void AdapterTiers::leave_if_forgotten(Id id) {
  const Entry& left = entry(id);
  if (!left.forgotten || !left.wanted.empty() || !left.pinned.empty()) return;
  if (left.host == Tier::kReady && !left.uploading) evict_host(id);
  if (left.device == Tier::kReady) evict_device(id);
}

void AdapterTiers::drop_if_unused(Id id) {
  Entry& unused = entry(id);
  const bool resident = unused.host != Tier::kAbsent || unused.device != Tier::kAbsent;
  if (!unused.alive || resident || !unused.wanted.empty() || !unused.pinned.empty()) return;
  const auto found = by_name_.find(unused.name);
  if (found != by_name_.end() && found->second == id) by_name_.erase(found);
  unused = Entry();
  free_ids_.push_back(id);
}

std::vector<AdapterTiers::Evicted> AdapterTiers::take_evicted() { return std::exchange(evicted_, {}); }

const AdapterTierStats& AdapterTiers::stats() const {
  stats_.device_bytes = device_pool_.used_bytes();
  stats_.host_bytes = host_pool_.used_bytes();
  return stats_;
}

}  // namespace shoal
