// FairQueue: requests that wait for their start, and who of them is next: by priority, then the tenant that was served
// least, then its adapter that was, then the order of submission. Used by AdapterQueue.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "scheduler/fair_shares.h"
#include "scheduler/sequence.h"

namespace shoal {

// A tenant's adapter may be served so many tokens more than another of the same tenant before it has to stand back:
// less than that and requests stay in the order in which they came.
inline constexpr std::int64_t kAdapterSlackTokens = 8192;
// What a tenant that sent less than the others may have at once before it stands in line with them: so many tokens more
// than they were served meanwhile, and so many requests.
inline constexpr std::int64_t kSavedTokens = 2048;
inline constexpr std::int64_t kSavedRounds = 8;
// So many requests of a higher priority start before one of a lower priority goes with them.
inline constexpr std::int64_t kMaxPassed = 16;

enum class Offer : std::uint8_t { kTake, kPass, kStop };

// What a walk over waiting requests does with each: `ask` is shown the next in order. kTake: it leaves the queue by
// `give`, and its prompt counts as served. kPass: this walk asks no more for its adapter and tenant. kStop: enough.
struct Walk {
  std::function<Offer(Sequence&)> ask;
  std::function<void(std::unique_ptr<Sequence>)> give;
};

// The requests of one priority.
class FairLevel {
 public:
  void add(std::unique_ptr<Sequence> sequence);
  void charge(const Sequence& sequence, std::int64_t tokens);
  void note_start(const Sequence& sequence);
  void close(const Sequence& sequence);
  bool empty() const { return tenants_.empty(); }  // of requests that wait or run
  std::int64_t num_waiting() const { return num_waiting_; }
  bool walk(const Walk& walk);            // false: it was stopped
  std::unique_ptr<Sequence> take_next();  // whom a walk would ask first; no charge, no close
  void take_ended(Sequences& ended);
  void for_each(const std::function<void(Sequence&)>& visit);

  std::int64_t num_passed = 0;  // starts of higher priority since one of this left for theirs

 private:
  struct Line {
    std::deque<std::unique_ptr<Sequence>> sequences;
  };
  using Lines = FairShares<Line>;
  struct Tenant {
    Lines adapters{{.slack = kAdapterSlackTokens, .saved = 0}};
    std::int64_t last_round = 0;
    std::multiset<std::int64_t> rounds;  // of those that wait
    std::int64_t num_waiting = 0;
    std::int64_t num_unstarted = 0;  // with those that left the queue, ready to run
  };
  using Tenants = FairShares<Tenant>;

  std::int64_t round_of_new(const Tenant& tenant) const;
  std::unique_ptr<Sequence> pop(Tenants::Member& tenant, Lines::Member& line);
  void refresh(Tenants::Member& tenant);

  Tenants tenants_{{.slack = 0, .saved = kSavedTokens}};
  std::int64_t num_waiting_ = 0;
  std::int64_t round_ = 0;  // the latest of those that started
};

class FairQueue {
 public:
  // Gives it its round, and so its place.
  void add(std::unique_ptr<Sequence> sequence);
  // `tokens` more were served to it. From add() until close().
  void charge(const Sequence& sequence, std::int64_t tokens);
  void note_start(Sequence& sequence);  // it runs, once
  void close(const Sequence& sequence);

  void walk(const Walk& walk);
  // Moves those that ended out of the queue. They are still to be closed.
  void take_ended(Sequences& ended);
  // In no order.
  void for_each(const std::function<void(Sequence&)>& visit);
  std::int64_t num_waiting() const;
  std::size_t num_levels() const { return levels_.size(); }

 private:
  void promote_passed(std::int32_t priority);

  std::map<std::int32_t, FairLevel, std::greater<>> levels_;  // by priority, those with requests that wait or run
};

}  // namespace shoal
