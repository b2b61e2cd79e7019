#include "engine/model_engine.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <filesystem>

#include "engine/largest_steps.h"
#include "ops/lora_launch.h"
#include "weights/progress.h"

namespace shoal {
namespace {

std::string config_path(const std::string& model_path) {
  const std::filesystem::path path(model_path);
  return std::filesystem::is_directory(path) ? (path / "config.json").string() : model_path;
}

WeightSource open_weights(const EngineOptions& options, DType dtype) {
  if (options.load_format == LoadFormat::kDummy) return WeightSource::dummy(dtype);
  return WeightSource(Checkpoint::open(options.model_path));
}

// What the logits of known tokens may take in one step.
constexpr std::int64_t kScoredLogitBytes = std::int64_t{64} << 20;

// The smaller of 2 GiB and a quarter of free memory.
std::int64_t modest_cache_bytes() {
  struct sysinfo memory{};
  ::sysinfo(&memory);
  const auto free_bytes = static_cast<std::int64_t>(memory.freeram + memory.bufferram) * memory.mem_unit;
  return std::min(std::int64_t{2} << 30, free_bytes / 4);
}

}  // namespace

DType default_dtype(const ConfigReader& config) {
  const std::optional<std::string> name = config.find_string({"torch_dtype", "dtype"});
  if (!name) return DType::kFloat32;
  const std::optional<DType> dtype = dtype_from_name(*name);
  if (!dtype || !is_float(*dtype)) {
    config.refuse(config.has("torch_dtype") ? "torch_dtype" : "dtype", "float32, bfloat16 or float16");
  }
  return *dtype;
}

ModelEngine::ModelEngine(const EngineOptions& options, const Backend& backend, AdapterSource& adapter_source,
                         Wakeup& wakeup)
    : backend_(backend), communicator_(make_single_communicator()), arena_(backend.allocator()) {
  const ConfigReader config = ConfigReader::from_file(config_path(options.model_path));
  if (config.has("quantization_config")) {
    throw StartError(
        fmt::format("{}: quantization_config is set, and quantized weights are not served yet", config.file()));
  }
  const std::int64_t free_bytes = backend.free_memory_bytes();
  load(options, config);
  // Before the cache, which takes nearly all that is left of a device.
  adapters_ = std::make_unique<AdapterStore>(adapter_source, lora_targets_, backend, wakeup,
                                             adapter_options(options, free_bytes));
  const std::int64_t vocab_limit = options.vocab_limit > 0 ? options.vocab_limit : model_info_.vocab;
  CHECK_LE(vocab_limit, model_info_.vocab);
  info_.vocab_size = vocab_limit;
  for (StepUnderWay& step : steps_) step.done = backend_.make_event();
  if (backend.has_graphs()) graphs_ = std::make_unique<GraphCache>(backend);
  const KvCacheShape shape = cache_shape(options);
  if (free_bytes > 0 && options.kv_cache_bytes == 0) reserve_scratch(shape);
  const std::int64_t blocks = num_blocks(options, shape);
  // Every token of a step needs a slot of the cache, every sequence a block, and none has more blocks than there are.
  info_.max_step_tokens = std::min(info_.max_step_tokens, blocks * kBlockSize);
  info_.max_sequences = std::min(info_.max_sequences, blocks);
  info_.max_scored_rows = std::clamp<std::int64_t>(kScoredLogitBytes / (4 * model_info_.vocab), 1, 512);
  make_cache(shape, blocks, std::min(blocks, blocks_for_tokens(info_.max_positions)));
}

ModelEngine::~ModelEngine() {
  wait_for_device();
  for (const StepUnderWay& step : steps_) backend_.destroy(step.done);
}

void ModelEngine::load(const EngineOptions& options, const ConfigReader& config) {
  model_info_ = read_model_info(config);
  dtype_ = options.dtype.value_or(default_dtype(config));
  std::int64_t served = options.served_positions > 0 ? options.served_positions : model_info_.max_positions;
  served = std::max(served, options.min_served_positions);
  if (model_info_.position_limit == PositionLimit::kTable && served > model_info_.max_positions) {
    throw StartError(fmt::format("{}: {} positions asked for, but the learned position table holds {}", config.file(),
                                 served, model_info_.max_positions));
  }
  WeightSource weights = open_weights(options, dtype_);
  ProgressReporter progress(
      {.label = "loading weights",
       .total_bytes = weights.total_bytes(),
       .style = options.show_progress ? ProgressReporter::style_of_stderr() : ProgressStyle::kSilent,
       .write = {},
       .now_s = {}});
  weights.set_bytes_read([&](std::int64_t num_bytes) {
    progress.add(num_bytes);
    weight_bytes_ += num_bytes;
  });
  LoadContext context{.backend = backend_,
                      .communicator = *communicator_,
                      .weights = weights,
                      .lora_targets = lora_targets_,
                      .dtype = dtype_,
                      .served_positions = served};
  model_ = load_model(config, context);
  progress.finish();
  info_ = {.model_family = model_info_.family,
           .dtype = std::string(dtype_name(dtype_)),
           .device = std::string(backend_.name()),
           .vocab_size = model_info_.vocab,
           .max_positions = served,
           .num_blocks = 0,
           .max_step_tokens = options.max_step_tokens,
           .max_sequences = options.max_sequences,
           .sliding_window = model_info_.sliding_window,
           .runs_beside_host = backend_.device() != DeviceKind::kCpu};
}

// Runs the largest steps over a cache of one block: their scratch is there before the cache takes what is left, and
// what a graph takes is known.
void ModelEngine::reserve_scratch(const KvCacheShape& shape) {
  constexpr std::int64_t kProbes = 8;
  make_cache(shape, 1, blocks_for_tokens(info_.max_positions));
  step(largest_step(info_));
  step(largest_decode(info_, info_.max_sequences));
  const auto probe = [&] {
    for (std::int64_t i = 1; i <= std::min(kProbes, info_.max_sequences); ++i) step(largest_decode(info_, i));
    backend_.synchronize(backend_.main_stream());
  };
  probe();
  if (graphs_) {
    const std::int64_t before = backend_.free_memory_bytes();
    probe();
    graph_bytes_ = std::max<std::int64_t>(0, before - backend_.free_memory_bytes()) * GraphCache::kMostGraphs / kProbes;
    graphs_->clear();
  }
}

// All that is free on a device, but for graphs, what penalties and logprobs take once asked for, and a rest; of a host
// what the adapters leave of a modest part.
std::int64_t ModelEngine::default_cache_bytes(const EngineOptions& options) const {
  constexpr std::int64_t kRest = std::int64_t{256} << 20;  // scratch of adapters, what the driver takes for itself
  const std::int64_t free_bytes = backend_.free_memory_bytes();
  if (free_bytes > 0) {
    const std::int64_t counts_bytes = info_.max_sequences * info_.vocab_size * dtype_bytes(DType::kInt32);
    // The model's own logits beside those that are sampled; logits of prompts, and again those rows that are sampled.
    const std::int64_t logits_bytes = info_.max_sequences * model_info_.vocab * dtype_bytes(DType::kFloat32);
    return free_bytes - graph_bytes_ - counts_bytes - 2 * logits_bytes - kScoredLogitBytes - kRest;
  }
  const double share = options.adapters.device_bytes > 0 ? 0.0 : options.adapter_memory_fraction;
  return static_cast<std::int64_t>(static_cast<double>(modest_cache_bytes()) * (1.0 - share));
}

AdapterStoreOptions ModelEngine::adapter_options(const EngineOptions& options, std::int64_t free_bytes) const {
  AdapterStoreOptions adapters = options.adapters;
  if (adapters.device_bytes == 0) {
    const double fraction = options.adapter_memory_fraction;
    double total_bytes = static_cast<double>(free_bytes > 0 ? free_bytes : modest_cache_bytes());
    // A cache that was made small leaves adapters what they would have beside the default one.
    if (free_bytes == 0) {
      total_bytes = std::max(total_bytes, static_cast<double>(options.kv_cache_bytes) / (1.0 - fraction));
    }
    adapters.device_bytes = static_cast<std::int64_t>(total_bytes * fraction);
  }
  std::int64_t bytes_each = 0;
  for (std::int32_t id = 0; id < lora_targets_.size(); ++id) {
    const LoraTarget& target = lora_targets_.at(id);
    constexpr std::int64_t kPaddingAndTable = std::int64_t{2} * 16 + static_cast<std::int64_t>(sizeof(LoraPairRef));
    bytes_each += options.min_adapters.rank * 2 * (target.in_features + target.out_features) + kPaddingAndTable;
  }
  bytes_each = BytePool::rounded(bytes_each);
  if (options.min_adapters.count > 0) adapters.host_bytes = std::max(adapters.host_bytes, bytes_each);
  adapters.device_bytes = std::max(adapters.device_bytes, options.min_adapters.count * bytes_each);
  adapters.max_device_adapters = std::max(adapters.max_device_adapters, options.min_adapters.count);
  return adapters;
}

KvCacheShape ModelEngine::cache_shape(const EngineOptions& options) const {
  return {.num_layers = model_info_.num_layers,
          .kv_heads = model_info_.kv_heads,
          .head_dim = model_info_.head_dim,
          .dtype = options.kv_cache_dtype.value_or(dtype_)};
}

std::int64_t ModelEngine::num_blocks(const EngineOptions& options, const KvCacheShape& shape) const {
  const std::int64_t needed_bytes = options.min_cache_tokens / kBlockSize * KvCache::bytes_per_block(shape);
  const std::int64_t cache_bytes =
      options.kv_cache_bytes > 0 ? options.kv_cache_bytes : std::max(default_cache_bytes(options), needed_bytes);
  const std::int64_t blocks = cache_bytes / KvCache::bytes_per_block(shape);
  if (blocks >= 1) return blocks;
  if (options.kv_cache_bytes > 0) {
    throw StartError(fmt::format("a cache of {} bytes holds no block: one takes {} bytes; raise --kv-cache-memory",
                                 cache_bytes, KvCache::bytes_per_block(shape)));
  }
  throw StartError(fmt::format(
      "no memory is left for a cache: {} bytes are free, of which graphs take {}; lower --adapter-memory-fraction, "
      "--max-batch-prefill-tokens or --max-batch-size, or serve a smaller model",
      backend_.free_memory_bytes(), graph_bytes_));
}

void ModelEngine::make_cache(const KvCacheShape& shape, std::int64_t num_blocks, std::int64_t max_blocks_each) {
  sampler_.reset();
  inputs_.reset();
  layer_caches_.clear();
  kv_cache_.reset();
  info_.num_blocks = num_blocks;
  kv_cache_ = std::make_unique<KvCache>(shape, num_blocks, backend_.allocator());
  for (std::int64_t layer = 0; layer < model_info_.num_layers; ++layer) {
    layer_caches_.push_back({.key = kv_cache_->key(layer), .value = kv_cache_->value(layer)});
  }
  inputs_ = std::make_unique<StepInputs>(backend_, info_.max_step_tokens, info_.max_sequences, max_blocks_each);
  const RankedColumns columns{.summed = model_info_.vocab, .ranked = info_.vocab_size};
  sampler_ = std::make_unique<Sampler>(backend_, columns, info_.max_sequences);
  unsampled_ = std::make_unique<UnsampledRows>(backend_, columns, info_);
  for (StepUnderWay& step : steps_) {
    step.sample_rows.reserve(static_cast<std::size_t>(info_.max_sequences));
    step.result.samples.reserve(static_cast<std::size_t>(info_.max_sequences));
  }
}

MemoryPlan ModelEngine::memory_plan() const {
  return {.weight_bytes = weight_bytes_,
          .adapter_bytes = adapters_->stats().tiers.device_limit_bytes,
          .cache_bytes = kv_cache_->num_bytes(),
          .scratch_bytes = arena_.capacity_bytes(),
          .graph_bytes = graph_bytes_,
          .left_bytes = backend_.free_memory_bytes()};
}

void ModelEngine::wait_for_device() {
  try {
    backend_.synchronize(backend_.main_stream());
  } catch (const std::exception& error) {
    spdlog::error("waiting for the device: {}", error.what());
  }
}

void ModelEngine::launch(const StepPlan& plan) {
  CHECK_LE(num_launched_ - num_collected_, 1U);
  const bool follows = num_launched_ > num_collected_;
  CHECK(!follows || unsampled_->none());
  try {
    start(plan);
    ++num_launched_;
  } catch (const std::exception&) {
    // What was queued of it must not run on while others get its memory.
    wait_for_device();
    throw;
  }
}

void ModelEngine::start(const StepPlan& plan) {
  StepUnderWay& step = steps_[num_launched_ % 2];
  step.plan = &plan;
  step.result.clear();
  edit_cache(plan);
  inputs_->build(plan, adapters_->by_slot());
  arena_.reset();
  Context ctx{.backend = backend_, .arena = arena_, .stream = backend_.main_stream()};
  start_counts(ctx, plan);
  const ForwardInput in = inputs_->forward_input(ctx, sampler_->device_tokens(), layer_caches_);
  list_sample_rows(step);
  sampler_->prepare(ctx.stream, step.sample_rows, plan.mask_words);
  unsampled_->prepare(plan, ctx.stream);
  const bool all_decode = !in.cu_seqlen_prefill.defined();
  if (plan.return_logits) {
    return_logits(ctx, model_->forward(ctx, in).logits, step.result);
  } else if (graphs_ && all_decode && unsampled_->none()) {
    graphs_->run(ctx.stream, graph_key(in), [&] { run_model(ctx, in, step); });
  } else {
    run_model(ctx, in, step);
  }
  step.samples = sampler_->download(ctx.stream);
  unsampled_->download(ctx.stream);
  backend_.record(step.done, ctx.stream);
}

const StepResult& ModelEngine::collect() {
  CHECK_LT(num_collected_, num_launched_);
  StepUnderWay& step = steps_[num_collected_++ % 2];
  backend_.wait(step.done);
  read_samples(step);
  unsampled_->collect(*step.plan, step.result);
  return step.result;
}

void ModelEngine::run_model(Context& ctx, const ForwardInput& in, const StepUnderWay& step) {
  Tensor logits = model_->forward(ctx, in).logits;
  if (in.skip_lm_head) {
    unsampled_->take_hidden(logits);
    if (step.sample_rows.empty() && !unsampled_->has_scored()) return;
    logits = model_->lm_head(ctx, logits, in.adapter_data.logits);
  }
  logits = unsampled_->take_logits(ctx, logits);
  if (!step.sample_rows.empty()) sampler_->sample(ctx, logits, in.input_ids);
}

GraphKey ModelEngine::graph_key(const ForwardInput& in) const {
  const LoraBatch& lora = in.adapter_data.tokens;
  std::int64_t largest_group = 0;
  for (const LoraGroup& group : lora.groups) largest_group = std::max(largest_group, group.token_count);
  return {.sequences = in.seqlen.num_sequences(),
          .logit_rows = in.lm_head_indices.dim(0),
          .table_width = in.block_tables.dim(1),
          .groups = lora.group_refs.defined() ? lora.group_refs.dim(0) : 0,
          .largest_group = (largest_group + kLoraTokenStep - 1) / kLoraTokenStep,
          .max_rank = lora.max_rank,
          .sampler = sampler_->shape(),
          .arena_generation = arena_.generation()};
}

void ModelEngine::edit_cache(const StepPlan& plan) {
  const Stream stream = backend_.main_stream();
  for (const LayerCache& layer : layer_caches_) {
    for (const Tensor& part : {layer.key, layer.value}) {
      for (const BlockCopy& copy : plan.copy_blocks) {
        backend_.copy(stream, part.rows(copy.from, 1), part.rows(copy.to, 1));
      }
      // All bits set is a NaN in each dtype that a cache may have.
      for (const std::int32_t block : plan.poison_blocks) backend_.fill_bytes(stream, part.rows(block, 1), 0xff);
    }
  }
}

void ModelEngine::start_counts(Context& ctx, const StepPlan& plan) {
  for (const PlanSequence& sequence : plan.sequences) {
    if (sequence.history_length == 0) continue;
    const std::span<const std::int64_t> history(plan.history_ids.data() + sequence.history_begin,
                                                static_cast<std::size_t>(sequence.history_length));
    sampler_->start_counts(ctx, sequence.state_slot, history, sequence.history_prompt_length);
  }
}

void ModelEngine::return_logits(Context& ctx, const Tensor& logits, StepResult& result) {
  result.logits = logits;
  if (backend_.device() == DeviceKind::kCpu) return;
  if (host_logits_.num_bytes() < logits.num_bytes()) {
    host_logits_ = Buffer(backend_.staging_allocator(), logits.num_bytes());
  }
  result.logits = host_logits_.view(DType::kFloat32, logits.shape());
  backend_.download(ctx.stream, logits, result.logits);
}

void ModelEngine::list_sample_rows(StepUnderWay& step) {
  const StepPlan& plan = *step.plan;
  step.sample_rows.clear();
  if (plan.return_logits) return;
  std::int64_t end_of_tokens = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& sequence = plan.sequences[i];
    const std::int32_t end = sequence.cached_length + sequence.query_length;
    end_of_tokens += sequence.query_length;
    const std::span<const LogitBias> biases(plan.biases.data() + sequence.bias_begin,
                                            static_cast<std::size_t>(sequence.num_biases));
    if (sequence.embed) continue;
    for (std::int32_t row = sequence.scored_rows; row < sequence.logit_rows; ++row) {
      step.sample_rows.push_back({.params = sequence.sampling,
                                  .position = end - sequence.logit_rows + row + 1,
                                  .state_slot = sequence.state_slot,
                                  .mask_row = row + 1 == sequence.logit_rows ? sequence.mask_row : -1,
                                  .biases = biases,
                                  .score = sequence.score,
                                  .num_top = sequence.num_top,
                                  .after = end_of_tokens - sequence.logit_rows + row});
      step.result.samples.push_back({.sequence = static_cast<std::int32_t>(i)});
    }
  }
}

void ModelEngine::read_samples(StepUnderWay& step) const {
  for (std::size_t row = 0; row < step.sample_rows.size(); ++row) {
    SampledToken& sample = step.result.samples[row];
    sample.token = step.samples.tokens.data<std::int64_t>()[row];
    sample.logprob = step.samples.logprobs.data<float>()[row];
    if (step.sample_rows[row].score == ScoreKind::kNone || sample.token < 0) continue;
    sample.score = static_cast<std::int32_t>(step.result.scores.size());
    step.result.scores.push_back(sampler_->score(step.samples, step.sample_rows[row], static_cast<std::int64_t>(row)));
  }
}

}  // namespace shoal
