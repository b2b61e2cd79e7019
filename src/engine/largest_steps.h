// The largest steps that an engine's limits allow, to find out what scratch memory they take. Used by ModelEngine.
#pragma once

#include "engine/engine.h"
#include "engine/step_plan.h"

namespace shoal {

// All blocks of these plans are block 0, whatever it holds: the samples mean nothing.

// max_sequences sequences, of which as few as possible are prompts that fill the step; all of them sample.
StepPlan largest_step(const EngineInfo& info);
// `num_sequences` decoding sequences, each as long as one may get.
StepPlan largest_decode(const EngineInfo& info, std::int64_t num_sequences);

}  // namespace shoal
