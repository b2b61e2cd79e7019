// Session: everything that a command needs to run a model, built from its flags in the right order. Used by the
// commands of this folder.
#pragma once

#include <memory>

#include "cli/options.h"
#include "core/thread_pool.h"
#include "engine/model_engine.h"
#include "ops/backends.h"

namespace shoal {

// Adapters that the command line names by folder, below --adapter-dir where that is given; whoever starts the program
// may read what they can read.
class PathSource final : public AdapterSource {
 public:
  explicit PathSource(std::filesystem::path adapter_dir) : adapter_dir_(std::move(adapter_dir)) {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override { return version_of_folder(adapter_dir_ / key.id); }

 private:
  std::filesystem::path adapter_dir_;
};

// What the config of --model-id says; UsageError where there is no such folder (or config.json, with dummy weights).
ModelInfo read_model(const ModelOptions& options, const char* flag = "--model-id");

// Refuses lengths that the model cannot be served at, naming the flag: past a table of learned positions, or 16 times
// past the positions that other models were made for. Warns of the rest: such a model runs, but may answer poorly.
void check_positions(const std::string& flag, std::int64_t wanted_positions, const ModelInfo& model);

class Session {
 public:
  // `source` outlives the session. `sizes` carries what a command decides itself: positions, step and cache sizes.
  Session(const ModelOptions& options, AdapterSource& source, EngineOptions sizes);

  ModelEngine& engine() { return *engine_; }
  Wakeup& wakeup() { return wakeup_; }
  ThreadPool& pool() { return *pool_; }

  // Loads an adapter, waits for it and keeps it; StartError when it is refused.
  PinnedAdapter keep_adapter(const AdapterKey& key);

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Backend> backend_;
  Wakeup wakeup_;
  std::unique_ptr<ModelEngine> engine_;
  std::int64_t last_kept_arrival_ = 0;  // below zero: those of a scheduler's requests are not
};

// The kernel set that SHOAL_ISA forces, else the fastest that the processor has. UsageError for an unknown or absent
// one.
CpuIsa isa_from_environment();

// Whether `--device` means CUDA: empty does where it is built and a GPU is there, unless SHOAL_ISA names CPU kernels.
bool takes_cuda(const std::string& device);
// The backend of `--device`.
// StartError when CUDA is asked for and cannot be had. `pool` outlives it.
std::unique_ptr<Backend> make_backend(const std::string& device, ThreadPool& pool);

}  // namespace shoal
