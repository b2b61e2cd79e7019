#include "scheduler/fair_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"

namespace shoal {

// Rounds count requests: each of a tenant has a later one, and the one that it sends while none of its waits for its
// start stands at least beside those that started last. Of the rounds in which it sent nothing it may use the last few.
// So places, which loads of adapters and preemption go by, know tenants too; with one tenant they are the order of
// submission.
std::int64_t FairLevel::round_of_new(const Tenant& tenant) const {
  const std::int64_t next = std::max(round_ - kSavedRounds, tenant.last_round + 1);
  return tenant.num_unstarted == 0 ? std::min(round_, next) : next;
}

void FairLevel::note_start(const Sequence& sequence) {
  round_ = std::max(round_, sequence.round);
  --tenants_.find(sequence.request.tenant)->item.num_unstarted;
}

void FairLevel::add(std::unique_ptr<Sequence> sequence) {
  Tenants::Member& tenant = tenants_.open(sequence->request.tenant);
  Lines::Member& line = tenant.item.adapters.open(sequence->share_name);
  auto& sequences = line.item.sequences;
  // At the end but for one that comes from a lower priority, and for the requests that came in between.
  const auto place = std::upper_bound(sequences.begin(), sequences.end(), sequence,
                                      [](const auto& a, const auto& b) { return a->arrival < b->arrival; });
  sequence->round = tenant.item.last_round = round_of_new(tenant.item);
  sequence->came_alone = tenant.item.num_unstarted == 0;
  sequence->in_saved_round = sequence->round < round_;
  // Lines are in the order of places. Room for adapters goes by place: whoever stood first in the line and yet had a
  // later place would wait for the room of those who wait behind it.
  if (place != sequences.end()) sequence->round = std::min(sequence->round, (*place)->round);
  tenant.item.rounds.insert(sequence->round);
  ++tenant.item.num_waiting;
  ++tenant.item.num_unstarted;
  ++num_waiting_;
  sequences.insert(place, std::move(sequence));
  tenant.item.adapters.set_first(line, sequences.front()->place());
  refresh(tenant);
}

// The tenant stands at the place of the request that it would send next.
void FairLevel::refresh(Tenants::Member& tenant) {
  if (tenant.item.num_waiting == 0) {
    tenants_.set_first(tenant, std::nullopt);
  } else if (tenant.item.adapters.has_next()) {
    tenants_.set_first(tenant, tenant.item.adapters.next().first);
  } else if (!tenant.set_aside) {
    tenants_.set_aside(tenant);
  }
}

std::unique_ptr<Sequence> FairLevel::pop(Tenants::Member& tenant, Lines::Member& line) {
  auto& sequences = line.item.sequences;
  std::unique_ptr<Sequence> popped = std::move(sequences.front());
  sequences.pop_front();
  tenant.item.rounds.extract(popped->round);
  --tenant.item.num_waiting;
  --num_waiting_;
  tenant.item.adapters.set_first(line, sequences.empty() ? std::nullopt : std::optional(sequences.front()->place()));
  return popped;
}

bool FairLevel::walk(const Walk& walk) {
  std::vector<std::pair<Tenants::Member*, Lines::Member*>> passed;
  bool stopped = false;
  while (!stopped && tenants_.has_next()) {
    Tenants::Member& tenant = tenants_.next();
    Lines::Member& line = tenant.item.adapters.next();
    switch (walk.ask(*line.item.sequences.front())) {
      case Offer::kTake: {
        std::unique_ptr<Sequence> taken = pop(tenant, line);
        // From here on all goes by places: who was preferred to an older one of its tenant must not stand behind it.
        if (!tenant.item.rounds.empty()) taken->round = std::min(taken->round, *tenant.item.rounds.begin());
        tenant.item.adapters.charge(line, taken->num_prompt_tokens);
        tenants_.charge(tenant, taken->num_prompt_tokens);
        refresh(tenant);
        walk.give(std::move(taken));
        break;
      }
      case Offer::kPass:
        tenant.item.adapters.set_aside(line);
        passed.emplace_back(&tenant, &line);
        refresh(tenant);
        break;
      case Offer::kStop:
        stopped = true;
        break;
    }
  }
  for (const auto& [tenant, line] : passed) {
    tenant->item.adapters.put_back(*line);
    tenants_.put_back(*tenant);
    refresh(*tenant);
  }
  return !stopped;
}

std::unique_ptr<Sequence> FairLevel::take_next() {
  Tenants::Member& tenant = tenants_.next();
  std::unique_ptr<Sequence> taken = pop(tenant, tenant.item.adapters.next());
  refresh(tenant);
  return taken;
}

void FairLevel::charge(const Sequence& sequence, std::int64_t tokens) {
  Tenants::Member& tenant = *tenants_.find(sequence.request.tenant);
  Lines& adapters = tenant.item.adapters;
  adapters.charge(*adapters.find(sequence.share_name), tokens);
  tenants_.charge(tenant, tokens);
  refresh(tenant);
}

void FairLevel::close(const Sequence& sequence) {
  Tenants::Member& tenant = *tenants_.find(sequence.request.tenant);
  if (!sequence.start_noted) --tenant.item.num_unstarted;
  Lines& adapters = tenant.item.adapters;
  adapters.close(*adapters.find(sequence.share_name));
  tenants_.close(tenant);
}

void FairLevel::take_ended(Sequences& ended) {
  tenants_.for_each([&](Tenants::Member& tenant) {
    if (tenant.item.num_waiting == 0) return;
    tenant.item.adapters.for_each([&](Lines::Member& line) {
      auto& sequences = line.item.sequences;
      const auto num_before = std::ssize(sequences);
      for (auto& sequence : sequences) {
        if (!sequence->ended) continue;
        tenant.item.rounds.extract(sequence->round);
        ended.push_back(std::move(sequence));
      }
      std::erase(sequences, nullptr);
      const std::int64_t num_ended = num_before - std::ssize(sequences);
      if (num_ended == 0) return;
      tenant.item.num_waiting -= num_ended;
      num_waiting_ -= num_ended;
      tenant.item.adapters.set_first(line,
                                     sequences.empty() ? std::nullopt : std::optional(sequences.front()->place()));
    });
    refresh(tenant);
  });
}

void FairLevel::for_each(const std::function<void(Sequence&)>& visit) {
  if (num_waiting_ == 0) return;
  tenants_.for_each([&](Tenants::Member& tenant) {
    if (tenant.item.num_waiting == 0) return;
    tenant.item.adapters.for_each([&](Lines::Member& line) {
      for (const auto& sequence : line.item.sequences) visit(*sequence);
    });
  });
}

void FairQueue::add(std::unique_ptr<Sequence> sequence) {
  sequence->fair_level = sequence->priority;
  levels_[sequence->priority].add(std::move(sequence));
}

void FairQueue::charge(const Sequence& sequence, std::int64_t tokens) {
  levels_.at(sequence.fair_level).charge(sequence, tokens);
}

void FairQueue::note_start(Sequence& sequence) {
  if (std::exchange(sequence.start_noted, true)) return;
  levels_.at(sequence.fair_level).note_start(sequence);
}

void FairQueue::close(const Sequence& sequence) {
  const auto level = levels_.find(sequence.fair_level);
  CHECK(level != levels_.end());
  level->second.close(sequence);
  if (level->second.empty()) levels_.erase(level);
}

void FairQueue::walk(const Walk& walk) {
  for (auto& [priority, level] : levels_) {
    const Walk counted{.ask = walk.ask, .give = [&, level_priority = priority](std::unique_ptr<Sequence> taken) {
                         walk.give(std::move(taken));
                         promote_passed(level_priority);
                       }};
    if (!level.walk(counted)) break;
  }
  std::erase_if(levels_, [](const auto& entry) { return entry.second.empty(); });
}

// Nobody starves behind a higher priority: after kMaxPassed starts one of each lower priority counts as one of theirs.
void FairQueue::promote_passed(std::int32_t priority) {
  FairLevel& high = levels_.at(priority);
  for (auto lower = levels_.upper_bound(priority); lower != levels_.end(); ++lower) {
    FairLevel& level = lower->second;
    if (level.num_waiting() == 0 || ++level.num_passed < kMaxPassed) continue;
    level.num_passed = 0;
    std::unique_ptr<Sequence> promoted = level.take_next();
    level.close(*promoted);
    promoted->priority = promoted->fair_level = priority;
    Sequence& moved = *promoted;
    high.add(std::move(promoted));
    if (moved.request.adapter) moved.pin.move_to(*moved.request.adapter, moved.adapter_version, moved.place());
  }
}

void FairQueue::take_ended(Sequences& ended) {
  for (auto& [priority, level] : levels_) level.take_ended(ended);
}

void FairQueue::for_each(const std::function<void(Sequence&)>& visit) {
  for (auto& [priority, level] : levels_) level.for_each(visit);
}

std::int64_t FairQueue::num_waiting() const {
  std::int64_t num_waiting = 0;
  for (const auto& [priority, level] : levels_) num_waiting += level.num_waiting();
  return num_waiting;
}

}  // namespace shoal
