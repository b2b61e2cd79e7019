// TrainedModel: one folder of models/ in an engine, under a scheduler: the served model without its server. Used by the
// equality test.
#pragma once

#include <filesystem>
#include <string>

#include "core/thread_pool.h"
#include "engine/model_engine.h"
#include "lora/adapter_source.h"
#include "ops/backend.h"
#include "scheduler/scheduler.h"

namespace shoal {

// The adapters of a model's folder, each under many names (see adapter_name).
class NamedFolders final : public AdapterSource {
 public:
  explicit NamedFolders(const std::string& model_folder)
      : adapters_(std::filesystem::path(model_folder) / "adapters") {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override;
  std::int64_t largest_file_bytes() const;

 private:
  std::filesystem::path adapters_;
};

class TrainedModel {
 public:
  // `backend` and `tokenizer` outlive it.
  TrainedModel(EngineOptions engine, const SchedulerOptions& scheduler, const Backend& backend,
               const Tokenizer& tokenizer)
      : source_(engine.model_path),
        engine_(engine, backend, source_, wakeup_),
        scheduler_(engine_, wakeup_, &tokenizer, scheduler) {}

  ModelEngine& engine() { return engine_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  NamedFolders source_;
  Wakeup wakeup_;
  ModelEngine engine_;
  Scheduler scheduler_;
};

}  // namespace shoal
