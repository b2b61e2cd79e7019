// UnsampledRows: the logits rows of a step that are not sampled: those that score a known token, and those whose hidden
// state is wanted in place of logits. Part of the ModelEngine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/step_plan.h"
#include "ops/staging.h"
#include "sampling/token_scorer.h"

namespace shoal {

class UnsampledRows {
 public:
  // `backend` outlives this. Memory is taken when the first such rows come.
  UnsampledRows(const Backend& backend, const RankedColumns& columns, const EngineInfo& info)
      : backend_(backend), columns_(columns), max_rows_(info.max_scored_rows + info.max_sequences) {}

  // Finds the plan's rows and queues what the device must know of them.
  void prepare(const StepPlan& plan, Stream stream);
  bool none() const { return !has_embedded() && !has_scored(); }
  bool has_embedded() const { return !embedded_.empty(); }
  bool has_scored() const { return !targets_.empty(); }

  // Activations [rows, hidden] of all rows, which stay until the step's end.
  void take_hidden(const Tensor& hidden) { hidden_ = hidden; }
  // Ranks the known tokens by `logits`, float32 [rows, width], and returns the rows that are sampled.
  Tensor take_logits(Context& ctx, const Tensor& logits);
  // Queues the way of both to the host.
  void download(Stream stream);
  // Once the stream has passed.
  void collect(const StepPlan& plan, StepResult& result) const;

 private:
  void collect_scores(const StepPlan& plan, StepResult& result) const;

  const Backend& backend_;
  const RankedColumns columns_;
  const std::int64_t max_rows_;
  std::vector<std::int64_t> targets_;          // [rows] -1 where no token is scored; empty: none is
  std::vector<std::int64_t> sampled_indices_;  // of rows
  std::vector<std::int32_t> embedded_;         // sequences; the row of each is
  std::vector<std::int64_t> embedded_rows_;    // here
  std::optional<TokenScorer> scorer_;
  std::optional<Staging> staging_;
  Tensor targets_on_device_;          // i64 [rows]
  Tensor sampled_indices_on_device_;  // i64 [sampled rows]
  Tensor hidden_;                     // activations [rows, hidden] on the device
  Buffer host_hidden_;                // where the device is not the host
  Tensor hidden_on_host_;             // the same on the host
};

}  // namespace shoal
