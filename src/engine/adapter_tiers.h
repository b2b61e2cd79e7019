// AdapterTiers: which adapters lie in device and host memory, which move next, and who has to leave. Bookkeeping alone,
// without memory, threads or clock; its caller does what next_load() and next_upload() say and reports back.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/adapter_key.h"
#include "core/result.h"
#include "engine/adapter_states.h"
#include "engine/byte_pool.h"

namespace shoal {

struct AdapterTierOptions {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t max_device_adapters = 1024;
};

class AdapterTiers {
 public:
  using Id = std::int32_t;  // of an adapter that is somewhere or wanted; used again once it is neither
  struct Move {
    Id id = -1;
    std::int64_t offset = 0;     // in the pool of the tier that it goes to
    std::int64_t num_bytes = 0;  // taken there
    std::int32_t slot = -1;      // of an upload: its number on the device, below max_device_adapters
  };
  struct Evicted {
    Id id = -1;
    std::int32_t slot = -1;  // -1: out of host memory
  };

  explicit AdapterTiers(AdapterTierOptions options);

  // --- requests. `place` tells one from another; each want() is paired with one release(). ---
  // It moves towards the device, those of earlier requests first. A failed load is not remembered for a later want().
  Id want(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place);
  TierState state(Id id) const;
  const Error& error(Id id) const;  // with kFailed
  // The slot, which nobody else gets until release(); none unless it is kOnDevice or kInUse.
  std::optional<std::int32_t> pin(Id id, const QueuePlace& place);
  // A pin that is never released. From now on others can have what it leaves, or fail.
  void keep(Id id);
  // What lies in memory of it, whatever its version, leaves as soon as nobody wants or uses it, and is not kept for the
  // next request. A new want() of the same version keeps it after all.
  void forget(const AdapterKey& key);
  // The slot whose last pin this was, if it was one.
  std::optional<std::int32_t> release(Id id, const QueuePlace& place);

  // --- moves: the next one for which there is room, its bytes taken; whoever makes room for it is in evicted() ---
  // Of no merge that takes long to compute, with kQuick.
  enum class Loads : std::uint8_t { kAll, kQuick };
  std::optional<Move> next_load(Loads loads = Loads::kAll);
  const AdapterKey& key(Id id) const { return entry(id).key; }
  // It takes `host_bytes`, at most those of the Move, and will take `device_bytes`.
  void load_done(Id id, std::int64_t host_bytes, std::int64_t device_bytes);
  void load_failed(Id id, Error error);
  // More than the Move had, which go back; it is tried again with as many.
  void load_needs(Id id, std::int64_t host_bytes);
  std::optional<Move> next_upload();
  void upload_done(Id id);
  void upload_failed(Id id, Error error);
  // Since the last call. To be taken before the next move begins to write.
  std::vector<Evicted> take_evicted();

  // Grows whenever somebody's state() may have changed for other reasons than the calls above.
  std::uint64_t num_news() const { return num_news_; }
  const AdapterTierStats& stats() const;

 private:
  enum class Tier : std::uint8_t { kAbsent, kMoving, kReady };
  struct Entry {
    AdapterKey key;
    std::string name;  // in by_name_
    std::set<QueuePlace> wanted, pinned;
    Tier host = Tier::kAbsent, device = Tier::kAbsent;
    bool uploading = false;
    bool forgotten = false;
    std::optional<Error> error;
    std::int64_t host_bytes = 0, host_offset = 0;  // bytes: an estimate until it is loaded
    std::int64_t device_bytes = 0, device_offset = 0;
    std::int32_t slot = -1;
    std::uint64_t last_use = 0;
    bool alive = false;
  };
  // Who may leave a tier: the least recently used that nobody waits for, then the one that is needed last.
  struct Leavers {
    std::set<std::pair<std::uint64_t, Id>> idle;
    std::set<std::pair<QueuePlace, Id>> wanted;
  };

  Entry& entry(Id id) { return entries_.at(static_cast<std::size_t>(id)); }
  const Entry& entry(Id id) const { return entries_.at(static_cast<std::size_t>(id)); }
  Id add_entry(const AdapterKey& key, std::string name, const AdapterVersion& version);
  // An entry is taken out of the sets below before it changes, and put back where it belongs after.
  void take_out(Id id);
  void put_back(Id id);
  static std::optional<Id> who_leaves(const Leavers& leavers, const QueuePlace& for_whom);
  std::string why_never_fits(const Entry& asked) const;
  void evict_host(Id id);
  void evict_device(Id id);
  void fail(Id id, Error error);
  void leave_if_forgotten(Id id);
  void drop_if_unused(Id id);

  AdapterTierOptions options_;
  BytePool host_pool_, device_pool_;
  std::vector<Entry> entries_;
  std::vector<Id> free_ids_;
  std::vector<std::int32_t> free_slots_;
  std::int32_t next_slot_ = 0;
  std::int64_t kept_bytes_ = 0;
  std::set<Id> kept_;
  std::unordered_map<std::string, Id> by_name_;
  std::set<std::pair<QueuePlace, Id>> to_load_, to_upload_;
  Leavers host_leavers_, device_leavers_;
  std::optional<std::pair<QueuePlace, Id>> refused_;  // the first of to_upload_, which found no room
  std::vector<Evicted> evicted_;
  std::uint64_t num_news_ = 0;
  std::uint64_t clock_ = 0;
  mutable AdapterTierStats stats_;
};

}  // namespace shoal
