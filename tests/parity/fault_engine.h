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
  const StepResult& step(const StepPlan& plan) override {
    StepPlan faulty = plan;
    fault_(faulty, num_steps_++);
    return right_.step(faulty);
  }
  AdapterHandle acquire_adapter(const AdapterKey& key) override { return right_.acquire_adapter(key); }
  AdapterStatus adapter_status(AdapterHandle handle) const override { return right_.adapter_status(handle); }
  void release_adapter(AdapterHandle handle) override { right_.release_adapter(handle); }
  std::int64_t num_loaded_adapters() const override { return right_.num_loaded_adapters(); }

 private:
  Engine& right_;
  PlanFault fault_;
  std::int64_t num_steps_ = 0;
};

}  // namespace shoal
