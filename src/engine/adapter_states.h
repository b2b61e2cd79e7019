// What an engine tells of adapters that requests want: where they are, who waits, what was moved. Used by scheduler/
// and by AdapterTiers.
#pragma once

#include <cstdint>

#include "core/adapter_key.h"

namespace shoal {

// A request's place in the queue: higher priority first, then the rounds in which tenants take turns, then the order of
// submission.
struct QueuePlace {
  std::int32_t priority = 0;
  std::int64_t round = 0;
  std::int64_t arrival = 0;

  bool operator==(const QueuePlace&) const = default;
  bool operator<(const QueuePlace& other) const {
    if (priority != other.priority) return priority > other.priority;
    return round != other.round ? round < other.round : arrival < other.arrival;
  }
};

enum class TierState : std::uint8_t {
  kMoving,    // on its way: queued for a load, loading, uploading
  kNoRoom,    // in host memory, and there was no room on the device when it was tried last; tried again at each release
  kOnDevice,  // may be pinned
  kInUse,     // on the device and pinned: one more pin takes no room
  kFailed,
};

// One request's claim on an adapter, from want_adapter() to release_adapter().
struct AdapterTicket {
  std::int32_t id = -1;
  QueuePlace place = {};  // no two claims on one adapter have the same
};

// An adapter that stays on the device until its ticket is released. Slot -1 is the base model.
struct PinnedAdapter {
  std::int32_t slot = -1;
  std::int64_t modules = 0;  // linear parts it changes, all matched
  AdapterIdentity identity = {};
};

struct AdapterTierStats {
  std::int64_t device_bytes = 0, host_bytes = 0;        // taken
  std::int64_t device_adapters = 0, host_adapters = 0;  // ready
  std::int64_t device_limit_bytes = 0, host_limit_bytes = 0;
  std::int64_t pinned_bytes = 0;  // of device_bytes
  std::int64_t loads = 0, failed_loads = 0, uploads = 0;
  std::int64_t device_evictions = 0, host_evictions = 0;
  std::int64_t device_hits = 0, host_hits = 0;  // requests that found theirs there
};

struct AdapterStats {
  AdapterTierStats tiers;
  double load_seconds = 0.0;  // of all loads together, failed ones included
};

}  // namespace shoal
