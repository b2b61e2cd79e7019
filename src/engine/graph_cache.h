// GraphCache: decode steps as captured graphs, one for each shape of step. A shape's first step runs as it is (which
// chooses algorithms and grows the arena), its second is captured, later ones are launched. Owned by the engine.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

#include "ops/backend.h"

namespace shoal {

// All that decides which kernels a decode step launches, and on which memory.
struct GraphKey {
  std::int64_t sequences = 0;
  std::int64_t logit_rows = 0;
  std::int64_t table_width = 0;    // of the block tables
  std::int64_t groups = 0;         // of adapters, padded
  std::int64_t largest_group = 0;  // tokens, rounded up
  std::int64_t max_rank = 0;
  bool counts = false;  // penalty counts are there
  bool masks = false;   // some row has a mask
  std::int64_t arena_generation = 0;

  auto operator<=>(const GraphKey&) const = default;
};

class GraphCache {
 public:
  // `backend` outlives this; it has graphs.
  explicit GraphCache(const Backend& backend) : backend_(backend) {}
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Queues on `stream` what `step` queues.
  void run(Stream stream, const GraphKey& key, const std::function<void()>& step);

  // For measurements: from now on each graph is waited for, and what the device spent on it is added up.
  void time_launches() { timed_ = true; }
  double device_seconds() const { return device_seconds_; }

 private:
  void clear();

  const Backend& backend_;
  std::map<GraphKey, Graph> graphs_;  // without a handle: seen once
  bool timed_ = false;
  double device_seconds_ = 0.0;
};

}  // namespace shoal
