// Trace: all that happens to a scheduler in one simulated run. Drawn from a seed, made smaller by the shrinker, printed
// as code where a run fails. Used by the simulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/request.h"

namespace shoal {

// All times are microseconds of virtual time.
struct TraceRequest {
  std::int64_t arrival_us = 0;
  std::int64_t adapter = -1;  // -1: the base model
  // The prompt: the beginning of one of a few texts, then tokens of its own.
  std::int64_t shared_text = 0;
  std::int64_t shared_tokens = 0;
  std::int64_t own_tokens = 1;
  std::uint64_t own_text = 0;
  std::int64_t max_new_tokens = 1;
  std::int64_t stop_token = -1;  // -1: none
  std::uint64_t sampling_seed = 0;
  bool has_penalties = false;
  std::int64_t tenant = 0;  // texts of two tenants are not shared, and places are, fairly
  std::int32_t priority = 0;
  std::int64_t cancel_after_us = -1;      // after its arrival; -1: it is not cancelled so
  std::int64_t cancel_after_tokens = -1;  // from within its event; -1: it is not cancelled so

  bool operator==(const TraceRequest&) const = default;
};

struct TraceReplacement {
  std::int64_t time_us = 0;
  std::int64_t adapter = 0;

  bool operator==(const TraceReplacement&) const = default;
};

struct Trace {
  // The scheduler and its engine:
  std::int64_t num_blocks = 64;
  std::int64_t step_tokens = 64;
  std::int64_t max_sequences = 8;
  std::int64_t sliding_window = 0;
  bool prefix_caching = false;
  bool shuffled_blocks = false;
  bool runs_ahead = false;           // a step is planned while the one before it runs
  std::int64_t max_requests = 1024;  // at the same time
  std::int64_t max_queue = -1;       // -1: no limit
  std::int64_t max_of_tenant = -1;   // -1: no limit
  std::int64_t timeout_ms = 0;       // 0: none
  std::int64_t cycle_ms = 50;
  // Adapters: small ones take one unit of memory, those whose number is `big_every` - 1 modulo `big_every` three.
  std::int64_t device_units = 8;
  std::int64_t host_units = 32;
  std::int64_t max_device_adapters = 1024;
  std::int64_t num_loaders = 2;
  std::int64_t load_us = 2000;    // the longest
  std::int64_t upload_us = 200;   // the longest
  std::int64_t big_every = 0;     // 0: none
  std::int64_t broken_every = 0;  // loads of these always fail; 0: none
  std::int64_t fail_percent = 0;  // of all other moves
  // What happens:
  std::vector<TraceRequest> requests;
  std::vector<TraceReplacement> replacements;
  std::vector<std::int64_t> failed_steps;  // by number

  bool operator==(const Trace&) const = default;
};

constexpr std::int64_t kTraceVocabulary = 200;
constexpr std::int64_t kTracePositions = 256;

Trace random_trace(std::uint64_t seed);
Request request_of(const Trace& trace, const TraceRequest& request);
std::string adapter_name(const Trace& trace, std::int64_t adapter);
bool is_broken(const Trace& trace, std::int64_t adapter);
bool never_fits(const Trace& trace, std::int64_t adapter);
// A designated initializer, without what is as by default.
std::string to_text(const Trace& trace);

// Deterministic on every machine, unlike the distributions of <random>.
std::uint64_t draw_of(std::uint64_t seed, std::uint64_t index);

}  // namespace shoal
