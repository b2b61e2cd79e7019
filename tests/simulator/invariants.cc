#include "simulator/invariants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>

#include "core/block_size.h"

namespace shoal {
namespace {

std::int64_t max_running(const Trace& trace) { return std::min(trace.max_sequences, trace.step_tokens); }

std::int64_t units_of(const std::string& adapter) { return adapter.starts_with("big") ? 3 : 1; }

}  // namespace

bool is_plain(const Trace& trace) {
  std::map<std::int64_t, std::int64_t> tokens;  // by adapter
  for (const TraceRequest& request : trace.requests) {
    if (request.priority != 0 || request.tenant != 0) return false;
    tokens[request.adapter] += request.shared_tokens + request.own_tokens + request.max_new_tokens;
  }
  return std::all_of(tokens.begin(), tokens.end(), [](const auto& each) { return each.second <= kAdapterSlackTokens; });
}

VirtualTime::Duration longest_first_wait(const Trace& trace) {
  // Of the first, beside others that decode.
  const std::int64_t chunk = trace.step_tokens - max_running(trace) + 1;
  std::int64_t most_steps = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::int64_t tokens = request.shared_tokens + request.own_tokens + request.max_new_tokens;
    if (blocks_for_tokens(tokens) > trace.num_blocks || tokens > kTracePositions) continue;
    most_steps = std::max(most_steps, (tokens + chunk - 1) / chunk + request.max_new_tokens);
  }
  const VirtualTime::Duration group = max_running(trace) * most_steps * SimulatedEngine::longest_step(trace);
  return std::chrono::milliseconds(trace.cycle_ms) +
         std::chrono::microseconds(2 * trace.load_us + 3 * trace.upload_us) + 3 * group;
}

Invariants::Invariants(Scheduler::Loop& loop, const FakeEngine& engine, const SimulatedEngine& simulated,
                       const Trace& trace, const VirtualTime& time)
    : loop_(loop),
      engine_(engine),
      simulated_(simulated),
      trace_(trace),
      time_(time),
      is_plain_(is_plain(trace)),
      longest_step_(SimulatedEngine::longest_step(trace)),
      longest_wait_(longest_first_wait(trace)) {}

void Invariants::look() {
  queued_.clear();
  loop_.for_each_queued([this](const Sequence& sequence) { queued_.push_back(&sequence); });
  all_ = queued_;
  for (const Sequences* sequences : {&loop_.waiting(), &loop_.running()}) {
    for (const auto& sequence : *sequences) all_.push_back(sequence.get());
  }
}

void Invariants::begin_turn() {
  look();
  num_steps_before_ = simulated_.num_steps();
  running_before_.clear();
  cancelled_before_.clear();
  for (const auto& sequence : loop_.running()) {
    running_before_[sequence->stream.get()] = {.num_cached = sequence->num_cached,
                                               .decodes = sequence->num_pending() == 1,
                                               .is_first = sequence == loop_.running().front()};
  }
  for (const Sequence* sequence : all_) {
    if (sequence->stream->cancelled()) cancelled_before_.insert(sequence->stream.get());
  }
}

void Invariants::end_turn() {
  look();
  check_blocks();
  check_pins();
  check_rows();
  check_ends();
  if (is_plain_) check_first();
}

// What is taken is what running sequences hold, and what they hold alone nobody else holds.
void Invariants::check_blocks() const {
  std::vector<int> num_holders(static_cast<std::size_t>(trace_.num_blocks));
  std::vector<bool> is_own(num_holders.size());
  std::set<std::int32_t> slots;
  for (const auto& sequence : loop_.running()) {
    EXPECT_TRUE(sequence->state_slot >= 0 && sequence->state_slot < trace_.max_sequences);
    EXPECT_TRUE(slots.insert(sequence->state_slot).second) << "two sequences have state slot " << sequence->state_slot;
    const std::int64_t num_tokens = sequence->num_tokens() + (sequence->num_steps_under_way > 0 ? 1 : 0);
    EXPECT_LE(sequence->blocks.num_blocks(), blocks_for_tokens(num_tokens)) << "more than its text needs";
    EXPECT_GE(sequence->blocks.num_blocks(), blocks_for_tokens(sequence->num_cached));
    const auto block_ids = sequence->blocks.block_ids();
    for (std::int64_t i = 0; i < std::ssize(block_ids); ++i) {
      const std::int32_t block = block_ids[static_cast<std::size_t>(i)];
      if (block < 0) continue;
      ++num_holders[static_cast<std::size_t>(block)];
      if (i >= sequence->blocks.num_shared()) is_own[static_cast<std::size_t>(block)] = true;
    }
  }
  std::int64_t num_held = 0;
  for (std::size_t block = 0; block < num_holders.size(); ++block) {
    num_held += num_holders[block] > 0 ? 1 : 0;
    EXPECT_FALSE(is_own[block] && num_holders[block] > 1) << "block " << block << " is one's own and another's too";
  }
  EXPECT_EQ(num_held, loop_.batch().num_used_blocks()) << "blocks that are taken but held by nobody, or held but free";
  EXPECT_TRUE(std::is_sorted(loop_.running().begin(), loop_.running().end(),
                             [](const auto& a, const auto& b) { return runs_before(*a, *b); }));
  const std::size_t num_that_wait = all_.size() - loop_.running().size();
  for (const Sequence* sequence : std::span(all_).first(num_that_wait)) {
    EXPECT_TRUE(sequence->state_slot < 0 && sequence->blocks.num_blocks() == 0 && sequence->num_cached == 0)
        << "one that does not run holds a slot or blocks";
  }
}

// A claim on its adapter for each request, and a pin for each that has its turn.
void Invariants::check_pins() const {
  std::int64_t num_claims = 0;
  std::map<std::int32_t, std::string> pinned;  // by slot
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Sequence& sequence = *all_[i];
    const std::int32_t slot = sequence.pin.pinned().slot;
    const bool may_run = i >= queued_.size();
    EXPECT_EQ(slot >= 0, may_run && sequence.request.adapter.has_value());
    EXPECT_LE(sequence.times_overtaken, kMaxPassed) << "others start before it again and again";
    if (!sequence.request.adapter) continue;
    ++num_claims;
    if (slot < 0) continue;
    const auto [place, is_new] = pinned.try_emplace(slot, sequence.request.adapter->id);
    EXPECT_EQ(place->second, sequence.request.adapter->id) << "two adapters in slot " << slot;
  }
  EXPECT_EQ(num_claims, engine_.num_pins()) << "claims on adapters that nobody has";
  std::int64_t pinned_bytes = 0;
  for (const auto& [slot, adapter] : pinned) pinned_bytes += units_of(adapter) * BytePool::kAlignment;
  EXPECT_EQ(pinned_bytes, engine_.adapter_stats().tiers.pinned_bytes) << "pins that nobody has";
}

// A step moves on whoever decodes, and the first of all in any case.
void Invariants::check_rows() const {
  if (simulated_.num_steps() == num_steps_before_) return;
  for (const auto& sequence : loop_.running()) {
    const auto before = running_before_.find(sequence->stream.get());
    if (before == running_before_.end() || sequence->ended) continue;
    if (!before->second.decodes && !before->second.is_first) continue;
    EXPECT_GT(sequence->num_cached, before->second.num_cached)
        << "a step leaves out " << (before->second.decodes ? "one that decodes" : "the first of all");
  }
  check_preempted();
  for (const auto& [stream, before] : running_before_) {
    const bool waits = std::any_of(loop_.waiting().begin(), loop_.waiting().end(),
                                   [&](const auto& sequence) { return sequence->stream.get() == stream; });
    EXPECT_FALSE(before.is_first && waits) << "the first of all is preempted";
  }
}

// Who was preempted stands behind all who run on: it was the youngest of the lowest priority.
void Invariants::check_preempted() const {
  for (const auto& preempted : loop_.waiting()) {
    if (!running_before_.contains(preempted->stream.get())) continue;
    for (const auto& sequence : loop_.running()) {
      if (!running_before_.contains(sequence->stream.get())) continue;
      EXPECT_TRUE(runs_before(*sequence, *preempted)) << "one is preempted for another that stands behind it";
    }
  }
}

// Who was cancelled is gone, and who had its time, but for what a step that is under way still needs.
void Invariants::check_ends() const {
  const auto timeout = std::chrono::milliseconds(trace_.timeout_ms);
  for (const Sequence* sequence : all_) {
    const bool leaves = sequence->ended && sequence->num_steps_under_way > 0;
    EXPECT_TRUE(leaves || !cancelled_before_.contains(sequence->stream.get()))
        << "one that was cancelled is still there";
    if (trace_.timeout_ms == 0) continue;
    const auto late = (trace_.runs_ahead ? 3 : 2) * longest_step_;
    EXPECT_LE(time_.now() - sequence->timings.submitted, timeout + late) << "one had its time";
  }
}

void Invariants::check_first() {
  const auto found = std::min_element(all_.begin(), all_.end(),
                                      [](const Sequence* a, const Sequence* b) { return runs_before(*a, *b); });
  const Sequence* const first_of_all = found == all_.end() ? nullptr : *found;
  const EventStream* const waits =
      first_of_all == nullptr || first_of_all->state_slot >= 0 ? nullptr : first_of_all->stream.get();
  if (waits != first_) {
    first_ = waits;
    first_since_ = time_.now();
  }
  if (waits == nullptr) return;
  const auto waited = std::chrono::duration_cast<VirtualTime::Duration>(time_.now() - first_since_);
  worst_wait_share_ =
      std::max(worst_wait_share_, static_cast<double>(waited.count()) / static_cast<double>(longest_wait_.count()));
  EXPECT_LE(waited.count(), longest_wait_.count()) << "nanoseconds that the first of all waits: it starves";
}

}  // namespace shoal
