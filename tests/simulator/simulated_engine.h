// SimulatedEngine: the fake engine in virtual time. Steps, loads and uploads last as long as the trace says, and other
// threads act while they do. Used by the simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "scheduler/fake_engine.h"
#include "simulator/trace.h"
#include "simulator/virtual_time.h"

namespace shoal {

class SimulatedEngine final : public Engine {
 public:
  static constexpr const char* kFailedStep = "the step fails";
  static constexpr const char* kFailedMove = "the adapter fails";

  // All outlive the engine.
  SimulatedEngine(FakeEngine& fake, const Trace& trace, VirtualTime& time);

  const EngineInfo& info() const override { return fake_.info(); }
  void launch(const StepPlan& plan) override;
  const StepResult& collect() override;
  AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) override;
  TierState adapter_state(const AdapterTicket& ticket) const override;
  Error adapter_error(const AdapterTicket& ticket) const override { return fake_.adapter_error(ticket); }
  std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) override;
  void release_adapter(const AdapterTicket& ticket) override;
  AdapterVersion adapter_version(const AdapterKey& key) const override { return fake_.adapter_version(key); }
  bool adapters_arriving() const override { return false; }  // the loop that waits for them is not this one
  AdapterStats adapter_stats() const override { return fake_.adapter_stats(); }

  std::int64_t num_steps() const { return num_collected_; }
  // Rows of steps that failed. Where steps run ahead, some may have been of no use already.
  std::int64_t num_failed_rows() const { return num_failed_rows_; }
  // The longest that a step of this trace takes, with the calls around it.
  static VirtualTime::Duration longest_step(const Trace& trace);

 private:
  void pass_call() const;
  void begin_move(const FakeEngine::HeldMove& move);

  FakeEngine& fake_;
  const Trace& trace_;
  VirtualTime& time_;
  std::int64_t num_launched_ = 0;   // all that were tried
  std::int64_t num_collected_ = 0;  // and those that failed at their launch
  std::deque<VirtualTime::Duration> under_way_;
  std::uint64_t num_moves_ = 0;
  std::int64_t num_failed_rows_ = 0;
};

}  // namespace shoal
