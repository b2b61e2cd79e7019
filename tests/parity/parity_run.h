// ParityRun: one golden case on one backend in one dtype, through the engine that serves. Used by the parity tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model_engine.h"
#include "engine/teacher_forcing.h"
#include "parity/golden_case.h"

namespace shoal {

// The worst of a run, as shares of its bound: above 1 is a failure.
struct ParityResult {
  double worst_share = 0.0;
  double worst_largest_error = 0.0;  // over the largest |logit| of its sequence
  std::string worst_sequence;
};

// Makes an engine that passes on to the given one, which outlives it.
using EngineWrapper = std::function<std::unique_ptr<Engine>(Engine& engine)>;

class ParityRun {
 public:
  // Loads the case and all its adapters. `golden` and `backend` outlive the run. Steps go through the engine that
  // `wrap` makes, if given.
  ParityRun(const GoldenCase& golden, const Backend& backend, DType dtype, const EngineWrapper& wrap = {});
  ~ParityRun();

  const ModelInfo& model_info() const { return model_engine_->model_info(); }

  // Teacher-forced logits of one run against the reference.
  ParityResult force(const GoldenRun& run, const TeacherForcingOptions& options);
  // The same with the sequences of every run, base and adapters, in one batch.
  ParityResult force_all_runs(const TeacherForcingOptions& options);
  // Greedy decoding of one run, every sequence in one batch: the first difference that the gap does not excuse, or "".
  std::string greedy_difference(const GoldenRun& run);

 private:
  struct Item {
    const GoldenSequence* golden;
    std::int32_t adapter;
  };

  ParityResult force_items(const std::vector<Item>& items, const TeacherForcingOptions& options);
  std::vector<Item> items_of(const GoldenRun& run);

  class FolderSource;
  const GoldenCase& golden_;
  DeviceKind device_;
  DType dtype_;
  std::unique_ptr<FolderSource> source_;
  Wakeup wakeup_;
  std::unique_ptr<ModelEngine> model_engine_;
  std::unique_ptr<Engine> wrapper_;
  Engine* engine_ = nullptr;             // the wrapper, or the model's
  std::vector<PinnedAdapter> adapters_;  // by run
};

}  // namespace shoal
