// AdapterStore: the memory of adapters, on the device and on the host, and the threads that fill it. Owned by the
// engine. AdapterTiers decides what lies where; this does it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "core/wakeup.h"
#include "engine/adapter_reader.h"
#include "engine/adapter_tiers.h"
#include "lora/adapter_weights.h"

namespace shoal {

struct AdapterStoreOptions {
  std::int64_t device_bytes = std::int64_t{1} << 30;
  std::int64_t host_bytes = std::int64_t{1} << 30;
  std::int64_t max_device_adapters = 1024;
  int num_loader_threads = 0;  // 0: as many as there are cores, two to four
};

class AdapterStore {
 public:
  // Reserves both memories. `source`, `targets`, `backend` and `wakeup` outlive the store; `wakeup` is rung whenever an
  // adapter arrived, failed, or found no room.
  AdapterStore(AdapterSource& source, const LoraTargets& targets, const Backend& backend, Wakeup& wakeup,
               const AdapterStoreOptions& options);
  ~AdapterStore();
  AdapterStore(const AdapterStore&) = delete;
  AdapterStore& operator=(const AdapterStore&) = delete;

  // The calls of Engine, from its thread.
  AdapterTicket want(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place);
  TierState state(const AdapterTicket& ticket) const;
  Error error(const AdapterTicket& ticket) const;
  std::optional<PinnedAdapter> pin(const AdapterTicket& ticket);
  void release(const AdapterTicket& ticket);
  // An upload is under way or about to be looked for.
  bool arriving() const;
  // It is pinned, and will never be released.
  void keep(const AdapterTicket& ticket);
  // The weights of each pinned slot, null for the others. A pinned slot never moves.
  std::span<const AdapterWeights* const> by_slot() const { return by_slot_; }

  // Any thread.
  AdapterVersion version(const AdapterKey& key) const { return reader_.version(key); }
  // Its memory is given back as soon as nobody wants or uses it.
  void forget(const AdapterKey& key);
  AdapterStats stats() const;

 private:
  void load_loop(const std::stop_token& stop);
  void upload_loop(const std::stop_token& stop);
  // Into the host bytes of `move`. `needed_bytes` is set where these are too few.
  Result<AdapterWeights> load(const AdapterKey& key, const AdapterTiers::Move& move, const std::stop_token& stop,
                              std::int64_t& needed_bytes) const;
  Result<AdapterWeights> read(const AdapterKey& key, const AdapterTiers::Move& move, const std::stop_token& stop,
                              std::int64_t& needed_bytes) const;
  Result<AdapterWeights> upload(const AdapterWeights& from, const AdapterTiers::Move& move) const;

  // With mutex_ held:
  void end_load(const AdapterTiers::Move& move, Result<AdapterWeights> loaded, std::int64_t needed_bytes);
  void end_upload(const AdapterTiers::Move& move, Result<AdapterWeights> uploaded);
  std::optional<AdapterTiers::Move> next_load();
  std::optional<AdapterTiers::Move> next_upload();
  void forget_evicted();
  void tell();

  const AdapterReader reader_;
  const Backend& backend_;
  Wakeup& wakeup_;
  const Buffer host_, device_;  // who may write which bytes is what tiers_ says

  // The engine's thread alone:
  std::vector<const AdapterWeights*> by_slot_;

  mutable std::mutex mutex_;
  std::condition_variable_any loads_, uploads_;
  // Guarded by mutex_:
  AdapterTiers tiers_;
  std::unordered_map<AdapterTiers::Id, AdapterWeights> on_host_;
  std::vector<std::unique_ptr<AdapterWeights>> on_device_;  // by slot
  bool uploads_rest_ = true;  // there was nothing to upload when it was looked for, and nothing changed since
  std::uint64_t told_news_ = 0;
  double load_seconds_ = 0.0;
  bool slow_merge_runs_ = false;  // one at a time, so that other loads go on beside it

  std::vector<std::jthread> threads_;  // last: they use all the others
};

}  // namespace shoal
