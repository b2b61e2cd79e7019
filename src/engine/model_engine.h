// ModelEngine: the engine over real weights: plan -> ForwardInput -> forward -> sample -> result. Made by cli/ and by
// the tests, run by the scheduler.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/adapter_store.h"
#include "engine/engine.h"
#include "engine/graph_cache.h"
#include "engine/step_inputs.h"
#include "engine/unsampled_rows.h"
#include "models/causal_lm.h"
#include "sampling/sampler.h"

namespace shoal {

enum class LoadFormat : std::uint8_t {
  kCheckpoint,  // a Hugging Face folder
  kDummy,       // random weights for a config.json alone: benchmarks
};

// Raises the memory for adapters until it holds `count` of this rank, in 16 bits, on every linear layer.
struct AdapterRoom {
  std::int64_t count = 0;
  std::int64_t rank = 0;
};

struct EngineOptions {
  std::string model_path;  // folder; with kDummy a config.json or a folder that holds one
  LoadFormat load_format = LoadFormat::kCheckpoint;
  std::optional<DType> dtype;           // of the weights in memory; default: the checkpoint's
  std::optional<DType> kv_cache_dtype;  // default: the weights'
  std::int64_t kv_cache_bytes =
      0;  // 0: nearly all of a GPU, the smaller of 2 GiB and a quarter of free memory of a host
  std::int64_t served_positions = 0;      // longest sequence; 0: the config's
  std::int64_t min_served_positions = 0;  // raises the config's length where given tokens are longer
  std::int64_t min_cache_tokens = 0;      // raises the default size of the cache
  std::int64_t vocab_limit = 0;           // ids at or past it are never sampled; 0: the model's vocabulary
  std::int64_t max_step_tokens = 1024;
  std::int64_t max_sequences = 256;
  bool show_progress = false;  // a bar on a terminal, lines in a log
  // Of the memory for adapters, where adapters.device_bytes is 0: a share of what is free on a device at the start; on
  // a host of what cache and adapters take together.
  double adapter_memory_fraction = 0.1;
  AdapterStoreOptions adapters = {};
  AdapterRoom min_adapters = {};
};

// What lies in the device's memory, or the host's, from the start on; the rest of a host is not ours to plan.
struct MemoryPlan {
  std::int64_t weight_bytes = 0;
  std::int64_t adapter_bytes = 0;
  std::int64_t cache_bytes = 0;
  std::int64_t scratch_bytes = 0;  // of the largest step, taken already where the cache fills a device
  std::int64_t graph_bytes = 0;    // kept free on a device for as many graphs as there may be
  std::int64_t left_bytes = 0;     // of a device, graphs included
};

class ModelEngine final : public Engine {
 public:
  // Loads the model. `backend`, `adapter_source` and `wakeup` outlive the engine. Throws StartError.
  ModelEngine(const EngineOptions& options, const Backend& backend, AdapterSource& adapter_source, Wakeup& wakeup);
  ~ModelEngine() override;

  const EngineInfo& info() const override { return info_; }
  void launch(const StepPlan& plan) override;
  const StepResult& collect() override;
  AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) override {
    return adapters_->want(key, version, place);
  }
  TierState adapter_state(const AdapterTicket& ticket) const override { return adapters_->state(ticket); }
  Error adapter_error(const AdapterTicket& ticket) const override { return adapters_->error(ticket); }
  std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) override { return adapters_->pin(ticket); }
  void release_adapter(const AdapterTicket& ticket) override { adapters_->release(ticket); }
  AdapterVersion adapter_version(const AdapterKey& key) const override { return adapters_->version(key); }
  AdapterStats adapter_stats() const override { return adapters_->stats(); }
  bool adapters_arriving() const override { return adapters_->arriving(); }

  // Its memory is given back as soon as nobody wants or uses it. Any thread.
  void forget_adapter(const AdapterKey& key) { adapters_->forget(key); }

  // A pinned adapter that is never released: what it takes counts no more as room for others.
  void keep_adapter(const AdapterTicket& ticket) { adapters_->keep(ticket); }

  const ModelInfo& model_info() const { return model_info_; }
  const LoraTargets& lora_targets() const { return lora_targets_; }
  std::int64_t weight_bytes() const { return weight_bytes_; }
  std::int64_t kv_cache_bytes() const { return kv_cache_->num_bytes(); }
  MemoryPlan memory_plan() const;
  GraphCache* graphs() { return graphs_.get(); }  // null where the backend has none; for measurements

 private:
  // A step between launch() and collect().
  struct StepUnderWay {
    const StepPlan* plan = nullptr;
    std::vector<SampleRow> sample_rows;
    SampleResults samples;
    StepResult result;
    DeviceEvent done;
  };

  void wait_for_device();
  void start(const StepPlan& plan);
  void load(const EngineOptions& options, const ConfigReader& config);
  KvCacheShape cache_shape(const EngineOptions& options) const;
  void reserve_scratch(const KvCacheShape& shape);
  std::int64_t num_blocks(const EngineOptions& options, const KvCacheShape& shape) const;
  std::int64_t default_cache_bytes(const EngineOptions& options) const;
  void make_cache(const KvCacheShape& shape, std::int64_t num_blocks, std::int64_t max_blocks_each);
  AdapterStoreOptions adapter_options(const EngineOptions& options, std::int64_t free_bytes) const;
  void edit_cache(const StepPlan& plan);
  void start_counts(Context& ctx, const StepPlan& plan);
  void return_logits(Context& ctx, const Tensor& logits, StepResult& result);
  GraphKey graph_key(const ForwardInput& in) const;
  static void list_sample_rows(StepUnderWay& step);
  void run_model(Context& ctx, const ForwardInput& in, const StepUnderWay& step);
  void read_samples(StepUnderWay& step) const;

  const Backend& backend_;
  std::unique_ptr<Communicator> communicator_;
  LoraTargets lora_targets_;
  ModelInfo model_info_;
  EngineInfo info_;
  DType dtype_ = DType::kFloat32;
  std::int64_t weight_bytes_ = 0;
  std::int64_t graph_bytes_ = 0;  // estimated
  std::unique_ptr<CausalLm> model_;
  std::unique_ptr<KvCache> kv_cache_;
  std::vector<LayerCache> layer_caches_;
  std::unique_ptr<AdapterStore> adapters_;
  std::unique_ptr<Sampler> sampler_;
  Arena arena_;
  std::unique_ptr<StepInputs> inputs_;
  Buffer host_logits_;                  // of a step that returns logits, where the device is not the host
  std::unique_ptr<GraphCache> graphs_;  // null where the backend has none
  std::unique_ptr<UnsampledRows> unsampled_;
  std::array<StepUnderWay, 2> steps_;  // take turns
  std::size_t num_launched_ = 0;
  std::size_t num_collected_ = 0;
};

// The dtype that weights take in memory unless the caller says otherwise: torch_dtype (or dtype) of the config, else
// float32. StartError when it names no float type.
DType default_dtype(const ConfigReader& config);

}  // namespace shoal
