#include "engine/adapter_store.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace shoal {
namespace {

// They read and hash files: more than the cores are of no use, but one may be busy with a merge for long.
int num_loaders(const AdapterStoreOptions& options) {
  if (options.num_loader_threads > 0) return options.num_loader_threads;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2U, 4U));
}

// Where the host computes the steps too, merges take no more of it than any load.
int num_merge_threads(const Backend& backend) {
  if (backend.device() == DeviceKind::kCpu) return 1;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1U, 16U));
}

}  // namespace

AdapterStore::AdapterStore(AdapterSource& source, const LoraTargets& targets, const Backend& backend, Wakeup& wakeup,
                           const AdapterStoreOptions& options)
    : reader_(source, targets,
              {.most_member_bytes = options.host_bytes, .num_merge_threads = num_merge_threads(backend)}),
      backend_(backend),
      wakeup_(wakeup),
      host_(backend.staging_allocator(), options.host_bytes),
      device_(backend.allocator(), options.device_bytes),
      tiers_({.device_bytes = options.device_bytes,
              .host_bytes = options.host_bytes,
              .max_device_adapters = options.max_device_adapters}) {
  for (int i = 0; i < num_loaders(options); ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { load_loop(stop); });
  }
  threads_.emplace_back([this](const std::stop_token& stop) { upload_loop(stop); });
}

AdapterStore::~AdapterStore() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
}

AdapterTicket AdapterStore::want(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) {
  const std::lock_guard lock(mutex_);
  const AdapterTicket ticket{.id = tiers_.want(key, version, place), .place = place};
  tell();
  return ticket;
}

TierState AdapterStore::state(const AdapterTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  return tiers_.state(ticket.id);
}

Error AdapterStore::error(const AdapterTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  return tiers_.error(ticket.id);
}

std::optional<PinnedAdapter> AdapterStore::pin(const AdapterTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::int32_t> slot = tiers_.pin(ticket.id, ticket.place);
  if (!slot) return std::nullopt;
  const auto index = static_cast<std::size_t>(*slot);
  const AdapterWeights& weights = *on_device_.at(index);
  if (by_slot_.size() <= index) by_slot_.resize(index + 1, nullptr);
  by_slot_[index] = &weights;
  return PinnedAdapter{.slot = *slot, .modules = weights.num_modules(), .identity = weights.identity()};
}

void AdapterStore::release(const AdapterTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::int32_t> slot = tiers_.release(ticket.id, ticket.place);
  if (slot) by_slot_[static_cast<std::size_t>(*slot)] = nullptr;
  forget_evicted();
  tell();
}

void AdapterStore::forget(const AdapterKey& key) {
  const std::lock_guard lock(mutex_);
  tiers_.forget(key);
  forget_evicted();
  tell();
}

void AdapterStore::keep(const AdapterTicket& ticket) {
  const std::lock_guard lock(mutex_);
  tiers_.keep(ticket.id);
}

bool AdapterStore::arriving() const {
  const std::lock_guard lock(mutex_);
  return !uploads_rest_;
}

AdapterStats AdapterStore::stats() const {
  const std::lock_guard lock(mutex_);
  return {.tiers = tiers_.stats(), .load_seconds = load_seconds_};
}

// Whatever changed may be what a thread waits for; what changed for a request rings the scheduler.
void AdapterStore::tell() {
  uploads_rest_ = false;
  loads_.notify_all();
  uploads_.notify_all();
  if (std::exchange(told_news_, tiers_.num_news()) != tiers_.num_news()) wakeup_.notify();
}

std::optional<AdapterTiers::Move> AdapterStore::next_load() {
  using Loads = AdapterTiers::Loads;
  std::optional<AdapterTiers::Move> move = tiers_.next_load(slow_merge_runs_ ? Loads::kQuick : Loads::kAll);
  forget_evicted();
  if (told_news_ != tiers_.num_news()) tell();  // some can never fit
  if (move && is_slow(tiers_.key(move->id))) slow_merge_runs_ = true;
  return move;
}

std::optional<AdapterTiers::Move> AdapterStore::next_upload() {
  std::optional<AdapterTiers::Move> move = tiers_.next_upload();
  forget_evicted();
  if (told_news_ != tiers_.num_news()) tell();  // the first found no room
  uploads_rest_ = !move.has_value();
  return move;
}

void AdapterStore::forget_evicted() {
  for (const AdapterTiers::Evicted& evicted : tiers_.take_evicted()) {
    if (evicted.slot < 0) {
      on_host_.erase(evicted.id);
    } else {
      on_device_.at(static_cast<std::size_t>(evicted.slot)).reset();
    }
  }
}

void AdapterStore::load_loop(const std::stop_token& stop) {
  for (;;) {
    std::optional<AdapterTiers::Move> move;
    AdapterKey key;
    {
      std::unique_lock lock(mutex_);
      loads_.wait(lock, stop, [&] { return (move = next_load()).has_value(); });
      if (stop.stop_requested()) return;
      key = tiers_.key(move->id);
    }
    const auto start = std::chrono::steady_clock::now();
    std::int64_t needed_bytes = 0;
    Result<AdapterWeights> loaded = load(key, *move, stop, needed_bytes);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (loaded.ok()) {
      const std::int64_t modules = loaded.value().num_modules();
      spdlog::info("adapter {}: {} of {} modules matched, {} bytes, {:.1f} ms", key.id, modules, modules,
                   loaded.value().num_bytes(), elapsed.count() * 1e3);
    } else if (needed_bytes == 0) {
      spdlog::warn("adapter {} refused: {}", key.id, loaded.error().message);
    }
    const std::lock_guard lock(mutex_);
    load_seconds_ += elapsed.count();
    if (is_slow(key)) slow_merge_runs_ = false;
    end_load(*move, std::move(loaded), needed_bytes);
  }
}

// Files that are replaced while they are read may be taken half and half: such a read is done again.
Result<AdapterWeights> AdapterStore::load(const AdapterKey& key, const AdapterTiers::Move& move,
                                          const std::stop_token& stop, std::int64_t& needed_bytes) const {
  constexpr int kMostReads = 4;
  for (int reads = 1; reads <= kMostReads; ++reads) {
    const AdapterVersion before = reader_.version(key);
    needed_bytes = 0;
    Result<AdapterWeights> loaded = read(key, move, stop, needed_bytes);
    if (reader_.version(key) == before) return loaded;
  }
  needed_bytes = 0;
  return Error{
      ErrorCode::kAdapterInvalid,
      fmt::format("adapter {} cannot be loaded: its files changed during each of {} reads", key.id, kMostReads)};
}

Result<AdapterWeights> AdapterStore::read(const AdapterKey& key, const AdapterTiers::Move& move,
                                          const std::stop_token& stop, std::int64_t& needed_bytes) const {
  const auto place = [&](std::int64_t num_bytes) -> std::byte* {
    if (num_bytes > move.num_bytes) {
      needed_bytes = num_bytes;
      return nullptr;
    }
    return static_cast<std::byte*>(host_.raw()) + move.offset;
  };
  try {
    return reader_.read(key, place, stop);
  } catch (const std::exception& error) {
    // Want of memory, a folder that vanishes while it is listed: the trouble of one request. An exception that left
    // the loader's thread would end the process.
    return Error{ErrorCode::kAdapterInvalid, fmt::format("adapter {} cannot be loaded: {}", key.id, error.what())};
  }
}

void AdapterStore::end_load(const AdapterTiers::Move& move, Result<AdapterWeights> loaded, std::int64_t needed_bytes) {
  if (needed_bytes > 0) {
    tiers_.load_needs(move.id, needed_bytes);
  } else if (!loaded.ok()) {
    tiers_.load_failed(move.id, loaded.error());
  } else {
    const std::int64_t host_bytes = loaded.value().num_bytes();
    const std::int64_t device_bytes = loaded.value().device_bytes(backend_);
    on_host_.insert_or_assign(move.id, std::move(loaded.value()));
    tiers_.load_done(move.id, host_bytes, device_bytes);
  }
  forget_evicted();
  tell();
}

void AdapterStore::upload_loop(const std::stop_token& stop) {
  for (;;) {
    std::optional<AdapterTiers::Move> move;
    const AdapterWeights* from = nullptr;
    {
      std::unique_lock lock(mutex_);
      uploads_.wait(lock, stop, [&] { return (move = next_upload()).has_value(); });
      if (stop.stop_requested()) return;
      from = &on_host_.at(move->id);  // stays where it is until the upload ends
    }
    Result<AdapterWeights> uploaded = upload(*from, *move);
    const std::lock_guard lock(mutex_);
    end_upload(*move, std::move(uploaded));
  }
}

Result<AdapterWeights> AdapterStore::upload(const AdapterWeights& from, const AdapterTiers::Move& move) const {
  try {
    return from.copy_to(backend_, static_cast<std::byte*>(device_.raw()) + move.offset);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kAdapterInvalid,
                 fmt::format("an adapter cannot be copied to the device: {}", error.what())};
  }
}

void AdapterStore::end_upload(const AdapterTiers::Move& move, Result<AdapterWeights> uploaded) {
  if (uploaded.ok()) {
    const auto slot = static_cast<std::size_t>(move.slot);
    if (on_device_.size() <= slot) on_device_.resize(slot + 1);
    on_device_[slot] = std::make_unique<AdapterWeights>(std::move(uploaded.value()));
    tiers_.upload_done(move.id);
  } else {
    tiers_.upload_failed(move.id, uploaded.error());
  }
  forget_evicted();
  tell();
}

}  // namespace shoal
