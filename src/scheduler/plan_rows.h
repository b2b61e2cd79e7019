// The rows of a step plan. Used by Batch, which decides which sequences have one.
#pragma once

#include <cstdint>

#include "engine/step_plan.h"
#include "scheduler/sequence.h"

namespace shoal::plan_rows {

// The next `query_length` tokens of a sequence that are not cached yet.
void add(Sequence& sequence, std::int64_t query_length, StepPlan& plan);

// Behind `before`, a row of the step before: the token that it samples, which is the sample `source_row` of that step.
// The sequence has a block for it, and nothing else of the row depends on what it is.
void add_next(const Sequence& sequence, const PlanSequence& before, std::int32_t source_row, StepPlan& plan);

}  // namespace shoal::plan_rows
