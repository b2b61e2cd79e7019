#include "simulator/simulated_engine.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr std::chrono::microseconds kStep{1000}, kStepToken{10};
constexpr std::chrono::nanoseconds kCall{100};
constexpr std::uint64_t kMoveDraws = 0x10ad;

// The adapter's number is the end of its name.
std::int64_t number_of(const std::string& name) { return std::stoll(name.substr(name.find('-') + 1)); }

}  // namespace

SimulatedEngine::SimulatedEngine(FakeEngine& fake, const Trace& trace, VirtualTime& time)
    : fake_(fake), trace_(trace), time_(time) {
  fake_.hold_moves(trace.num_loaders, [this](const FakeEngine::HeldMove& move) { begin_move(move); });
}

VirtualTime::Duration SimulatedEngine::longest_step(const Trace& trace) {
  // Each request that waits is looked at twice at most, each that runs makes a few calls as it comes and goes.
  return kStep + trace.step_tokens * kStepToken + (2 * std::ssize(trace.requests) + 4 * trace.max_sequences) * kCall;
}

// Of the steps that fail every other one does so at its launch, before it takes any time.
void SimulatedEngine::launch(const StepPlan& plan) {
  const std::int64_t number = num_launched_++;
  const bool fails =
      std::find(trace_.failed_steps.begin(), trace_.failed_steps.end(), number) != trace_.failed_steps.end();
  const bool at_launch = fails && number % 2 == 0;
  if (fails) {
    num_failed_rows_ += std::ssize(plan.sequences);
    fake_.fail_next_step(kFailedStep, at_launch ? FakeEngine::FailAt::kLaunch : FakeEngine::FailAt::kCollect);
  }
  std::int64_t num_tokens = 0;
  for (const PlanSequence& row : plan.sequences) num_tokens += row.query_length;
  if (at_launch) {
    time_.advance(kStep);
    ++num_collected_;
  } else {
    under_way_.push_back(kStep + num_tokens * kStepToken);
  }
  fake_.launch(plan);
}

const StepResult& SimulatedEngine::collect() {
  time_.advance(under_way_.front());
  under_way_.pop_front();
  ++num_collected_;
  return fake_.collect();
}

// Other threads also act between two calls of the scheduler.
void SimulatedEngine::pass_call() const { time_.advance(kCall); }

AdapterTicket SimulatedEngine::want_adapter(const AdapterKey& key, const AdapterVersion& version,
                                            const QueuePlace& place) {
  pass_call();
  return fake_.want_adapter(key, version, place);
}

TierState SimulatedEngine::adapter_state(const AdapterTicket& ticket) const {
  pass_call();
  return fake_.adapter_state(ticket);
}

std::optional<PinnedAdapter> SimulatedEngine::pin_adapter(const AdapterTicket& ticket) {
  pass_call();
  return fake_.pin_adapter(ticket);
}

void SimulatedEngine::release_adapter(const AdapterTicket& ticket) {
  pass_call();
  fake_.release_adapter(ticket);
}

void SimulatedEngine::begin_move(const FakeEngine::HeldMove& move) {
  const bool is_load = move.kind == FakeEngine::HeldMove::Kind::kLoad;
  const std::uint64_t drawn = draw_of(kMoveDraws, num_moves_++);
  const std::int64_t longest_us = is_load ? trace_.load_us : trace_.upload_us;
  const std::chrono::microseconds duration((longest_us + static_cast<std::int64_t>(drawn % 4) * longest_us) / 4);
  const bool fails = (is_load && is_broken(trace_, number_of(move.adapter))) ||
                     static_cast<std::int64_t>((drawn >> 8) % 100) < trace_.fail_percent;
  time_.after(duration, [this, move, fails] {
    fake_.end_move(move, fails ? std::optional(Error{ErrorCode::kAdapterInvalid, kFailedMove}) : std::nullopt);
  });
}

}  // namespace shoal
