// FaultyEngine: an engine whose step plans are edited before each step, as a wrong scheduler would. Used by the fault
// test.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace shoal {

// Changes the plan of step `index`, counted from 0.
using PlanFault = void (*)(StepPlan& plan, std::int64_t index);

class FaultyEngine final : public Engine {
 public:
  // `right` outlives this engine.
  FaultyEngine(Engine& right, PlanFault fault) : right_(right), fault_(fault) {}

  const EngineInfo& info() const override { return right_.info(); }
  void launch(const StepPlan& plan) override {
    faulty_ = plan;  // teacher forcing has one step under way
    fault_(faulty_, num_steps_++);
    right_.launch(faulty_);
  }
  const StepResult& collect() override { return right_.collect(); }
  AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) override {
    return right_.want_adapter(key, version, place);
  }
  TierState adapter_state(const AdapterTicket& ticket) const override { return right_.adapter_state(ticket); }
  Error adapter_error(const AdapterTicket& ticket) const override { return right_.adapter_error(ticket); }
  std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) override { return right_.pin_adapter(ticket); }
  void release_adapter(const AdapterTicket& ticket) override { right_.release_adapter(ticket); }
  AdapterVersion adapter_version(const AdapterKey& key) const override { return right_.adapter_version(key); }
  AdapterStats adapter_stats() const override { return right_.adapter_stats(); }
  bool adapters_arriving() const override { return right_.adapters_arriving(); }

 private:
  Engine& right_;
  PlanFault fault_;
  StepPlan faulty_;
  std::int64_t num_steps_ = 0;
};

}  // namespace shoal
