// AdapterStore: adapters in memory, loaded off the step path by threads of its own, kept least recently used within a
// byte budget. Owned by the engine; called from the scheduler's thread only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/wakeup.h"
#include "engine/engine.h"
#include "lora/adapter_source.h"
#include "lora/adapter_weights.h"

namespace shoal {

struct AdapterStoreOptions {
  std::int64_t budget_bytes = std::int64_t{1} << 30;  // of unpinned and pinned adapters together
  std::int64_t max_adapters = 1024;
  int num_loader_threads = 2;
};

class AdapterStore {
 public:
  // `source`, `targets`, `backend` and `wakeup` outlive the store; `wakeup` is rung whenever a load ends.
  AdapterStore(AdapterSource& source, const LoraTargets& targets, const Backend& backend, Wakeup& wakeup,
               AdapterStoreOptions options);
  ~AdapterStore();
  AdapterStore(const AdapterStore&) = delete;
  AdapterStore& operator=(const AdapterStore&) = delete;

  AdapterHandle acquire(const AdapterKey& key);
  AdapterStatus status(AdapterHandle handle);
  void release(AdapterHandle handle);

  // The weights of each slot, null while it is not ready; the slot of a pinned handle never moves.
  std::span<const AdapterWeights* const> by_slot() const { return weights_by_slot_; }
  // Safe from any thread.
  std::int64_t num_loaded() const { return num_loaded_.load(std::memory_order_relaxed); }
  std::int64_t used_bytes() const { return used_bytes_; }

 private:
  struct Slot {
    AdapterKey key;
    std::int64_t pins = 0;
    std::uint64_t last_use = 0;
    AdapterStatus status;
    std::unique_ptr<AdapterWeights> weights;  // once ready
  };
  struct Load {
    std::int32_t slot = 0;
    AdapterKey key;
    std::optional<Result<AdapterWeights>> result;
  };

  Result<AdapterWeights> fetch_and_load(const AdapterKey& key);
  void loader_loop(const std::stop_token& stop);
  // Moves finished loads into their slots; the scheduler's thread does it, so that no step sees a half-made slot.
  void collect_finished();
  void evict_for(std::int64_t wanted_bytes);
  void clear_slot(std::size_t index);
  std::int32_t free_slot();

  AdapterSource& source_;
  const LoraTargets& targets_;
  const Backend& backend_;
  Wakeup& wakeup_;
  AdapterStoreOptions options_;

  std::vector<Slot> slots_;
  std::vector<const AdapterWeights*> weights_by_slot_;
  std::atomic<std::int64_t> num_loaded_{0};
  std::int64_t used_bytes_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t num_loads_ = 0;  // that ended well

  std::mutex mutex_;
  std::condition_variable_any work_;
  std::deque<Load> waiting_;    // guarded by mutex_
  std::vector<Load> finished_;  // guarded by mutex_
  std::vector<std::jthread> loaders_;
};

}  // namespace shoal
