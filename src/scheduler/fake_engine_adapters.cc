// The adapters of the FakeEngine: tiers without weights, moved at once or when a test says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "scheduler/fake_engine.h"

namespace shoal {

AdapterVersion FakeEngine::adapter_version(const AdapterKey& key) const {
  return {.signature = 1 + num_replacements(key.id),
          .file_bytes = (key.id.starts_with("big") ? 3 : 1) * BytePool::kAlignment};
}

AdapterTicket FakeEngine::want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) {
  const std::lock_guard lock(mutex_);
  const AdapterTicket ticket{.id = tiers_.want(key, version, place), .place = place};
  names_[ticket.id] = key.id;
  ++tickets_[key.id];
  run_moves();
  return ticket;
}

TierState FakeEngine::adapter_state(const AdapterTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  return tiers_.state(ticket.id);
}

Error FakeEngine::adapter_error(const AdapterTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  return tiers_.error(ticket.id);
}

std::optional<PinnedAdapter> FakeEngine::pin_adapter(const AdapterTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::int32_t> slot = tiers_.pin(ticket.id, ticket.place);
  if (!slot) return std::nullopt;
  ++slot_pins_[*slot];
  const Weights& weights = on_device_.at(*slot);
  return PinnedAdapter{.slot = *slot,
                       .modules = 1,
                       .identity = {.high = weights.generation + 1, .low = std::hash<std::string>()(weights.id)}};
}

void FakeEngine::release_adapter(const AdapterTicket& ticket) {
  const std::lock_guard lock(mutex_);
  EXPECT_GE(--tickets_.at(names_.at(ticket.id)), 0) << "released more often than wanted";
  if (const std::optional<std::int32_t> slot = tiers_.release(ticket.id, ticket.place)) {
    EXPECT_FALSE(runs_under_way(*slot)) << "released while a step uses it";
    slot_pins_.erase(*slot);
  }
  run_moves();
}

void FakeEngine::forget_adapter(const AdapterKey& key) {
  const std::lock_guard lock(mutex_);
  tiers_.forget(key);
  run_moves();
}

AdapterStats FakeEngine::adapter_stats() const {
  const std::lock_guard lock(mutex_);
  return {.tiers = tiers_.stats()};
}

// All moves that there is room for, at once; those that are held or of slow adapters begin and wait for the test.
void FakeEngine::run_moves() {
  bool moved = true;
  while (moved) {
    moved = begin_load();
    moved = begin_upload() || moved;
    forget_evicted();
  }
  tell();
}

bool FakeEngine::begin_load() {
  if (std::ssize(slow_loads_) >= max_loads_) return false;
  const std::optional<AdapterTiers::Move> load = tiers_.next_load();
  if (!load) return false;
  const std::string& id = tiers_.key(load->id).id;
  const Weights weights{.id = id, .generation = generations_[id]};
  forget_evicted();
  if (id.starts_with("missing")) {
    tiers_.load_failed(load->id, {ErrorCode::kAdapterNotFound, "adapter '" + id + "' not found"});
    return true;
  }
  if (on_move_ || id.starts_with("slow")) {
    slow_loads_[load->id] = weights;
  } else {
    put_on_host(load->id, weights);
  }
  if (on_move_) on_move_({.kind = HeldMove::Kind::kLoad, .id = load->id, .adapter = id});
  return true;
}

bool FakeEngine::begin_upload() {
  if (!held_uploads_.empty()) return false;
  const std::optional<AdapterTiers::Move> upload = tiers_.next_upload();
  if (!upload) return false;
  forget_evicted();
  if (on_move_) {
    held_uploads_[upload->id] = upload->slot;
    on_move_({.kind = HeldMove::Kind::kUpload, .id = upload->id, .adapter = tiers_.key(upload->id).id});
  } else {
    end_upload(upload->id, upload->slot);
  }
  return true;
}

void FakeEngine::end_upload(AdapterTiers::Id id, std::int32_t slot) {
  on_device_[slot] = on_host_.at(id);
  tiers_.upload_done(id);
}

void FakeEngine::hold_moves(std::int64_t max_loads, std::function<void(const HeldMove&)> on_begin) {
  const std::lock_guard lock(mutex_);
  max_loads_ = max_loads;
  on_move_ = std::move(on_begin);
}

void FakeEngine::end_move(const HeldMove& move, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  if (move.kind == HeldMove::Kind::kLoad) {
    const Weights weights = slow_loads_.at(move.id);
    slow_loads_.erase(move.id);
    if (error) {
      tiers_.load_failed(move.id, *std::move(error));
    } else {
      put_on_host(move.id, weights);
    }
  } else {
    const std::int32_t slot = held_uploads_.at(move.id);
    held_uploads_.erase(move.id);
    if (error) {
      tiers_.upload_failed(move.id, *std::move(error));
    } else {
      end_upload(move.id, slot);
    }
  }
  run_moves();
}

void FakeEngine::tell() {
  if (std::exchange(told_news_, tiers_.num_news()) != tiers_.num_news()) wakeup_.notify();
}

void FakeEngine::put_on_host(AdapterTiers::Id id, const Weights& weights) {
  const std::int64_t num_bytes = (weights.id.starts_with("big") ? 3 : 1) * BytePool::kAlignment;
  on_host_[id] = weights;
  tiers_.load_done(id, num_bytes, num_bytes);
}

void FakeEngine::forget_evicted() {
  for (const AdapterTiers::Evicted& evicted : tiers_.take_evicted()) {
    if (evicted.slot < 0) {
      on_host_.erase(evicted.id);
      continue;
    }
    EXPECT_FALSE(slot_pins_.contains(evicted.slot)) << "a pinned adapter leaves";
    on_device_.erase(evicted.slot);
  }
}

std::optional<AdapterTiers::Id> FakeEngine::take_slow_load(const std::string& id) {
  const auto load =
      std::find_if(slow_loads_.begin(), slow_loads_.end(), [&](const auto& each) { return each.second.id == id; });
  if (load == slow_loads_.end()) return std::nullopt;
  const AdapterTiers::Id found = load->first;
  slow_loads_.erase(load);
  return found;
}

void FakeEngine::complete_load(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    const std::optional<AdapterTiers::Id> load = take_slow_load(id);
    if (!load) return;
    put_on_host(*load, {.id = id, .generation = generations_[id]});
    run_moves();
  }
  wakeup_.notify();
}

void FakeEngine::fail_load(const std::string& id, Error error) {
  {
    const std::lock_guard lock(mutex_);
    const std::optional<AdapterTiers::Id> load = take_slow_load(id);
    if (!load) return;
    tiers_.load_failed(*load, std::move(error));
    run_moves();
  }
  wakeup_.notify();
}

std::int64_t FakeEngine::num_pins() const {
  const std::lock_guard lock(mutex_);
  std::int64_t tickets = 0;
  for (const auto& [id, count] : tickets_) tickets += count;
  return tickets;
}

std::int64_t FakeEngine::num_pins(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto tickets = tickets_.find(id);
  return tickets == tickets_.end() ? 0 : tickets->second;
}

}  // namespace shoal
