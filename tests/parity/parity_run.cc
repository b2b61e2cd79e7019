#include "parity/parity_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cache/block_table.h"
#include "engine/pin_adapter.h"

namespace shoal {
namespace {

double largest_magnitude(std::span<const float> logits) {
  double largest = 0.0;
  for (const float logit : logits) largest = std::max(largest, std::abs(static_cast<double>(logit)));
  return largest;
}

}  // namespace

class ParityRun::FolderSource final : public AdapterSource {
 public:
  explicit FolderSource(std::string folder) : folder_(std::move(folder)) {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    return std::filesystem::path(folder_) / ("adapter_" + key.id);
  }
  AdapterVersion version(const AdapterKey& key) override { return version_of_folder(fetch(key).value()); }

 private:
  std::string folder_;
};

ParityRun::ParityRun(const GoldenCase& golden, const Backend& backend, DType dtype, const EngineWrapper& wrap)
    : golden_(golden),
      device_(backend.device()),
      dtype_(dtype),
      source_(std::make_unique<FolderSource>(golden.folder)) {
  EngineOptions options;
  options.model_path = golden.folder;
  options.dtype = dtype;
  options.kv_cache_bytes = std::int64_t{16} << 20;
  options.adapters = {.device_bytes = std::int64_t{64} << 20, .host_bytes = std::int64_t{64} << 20};
  for (const GoldenRun& run : golden.runs) {
    for (const GoldenSequence& sequence : run.sequences) {
      options.min_served_positions =
          std::max(options.min_served_positions, static_cast<std::int64_t>(sequence.input_ids.size()));
    }
  }
  model_engine_ = std::make_unique<ModelEngine>(options, backend, *source_, wakeup_);
  if (wrap) wrapper_ = wrap(*model_engine_);
  engine_ = wrapper_ ? wrapper_.get() : model_engine_.get();
  for (const GoldenRun& run : golden.runs) {
    if (run.adapter.empty()) {
      adapters_.emplace_back();
      continue;
    }
    const Result<HeldAdapter> held =
        pin_when_ready(*engine_, wakeup_, {.id = run.adapter}, static_cast<std::int64_t>(adapters_.size()));
    if (!held.ok()) throw StartError(held.error().message);
    adapters_.push_back(held.value().adapter);
  }
}

ParityRun::~ParityRun() = default;

std::vector<ParityRun::Item> ParityRun::items_of(const GoldenRun& run) {
  const auto index = static_cast<std::size_t>(&run - golden_.runs.data());
  std::vector<Item> items;
  for (const GoldenSequence& sequence : run.sequences) {
    items.push_back({.golden = &sequence, .adapter = adapters_.at(index).slot});
  }
  return items;
}

ParityResult ParityRun::force(const GoldenRun& run, const TeacherForcingOptions& options) {
  return force_items(items_of(run), options);
}

ParityResult ParityRun::force_all_runs(const TeacherForcingOptions& options) {
  std::vector<Item> items;
  for (const GoldenRun& run : golden_.runs) {
    const std::vector<Item> of_run = items_of(run);
    items.insert(items.end(), of_run.begin(), of_run.end());
  }
  return force_items(items, options);
}

ParityResult ParityRun::force_items(const std::vector<Item>& items, const TeacherForcingOptions& options) {
  std::vector<ForcedSequence> sequences;
  std::vector<std::vector<float>> ours(items.size());
  for (const Item& item : items) sequences.push_back({.input_ids = item.golden->input_ids, .adapter = item.adapter});
  run_teacher_forcing(*engine_, sequences, options,
                      [&](std::size_t sequence, std::int64_t /*first_position*/, const Tensor& logits) {
                        const std::span<const float> rows = logits.span<float>();
                        ours[sequence].insert(ours[sequence].end(), rows.begin(), rows.end());
                      });
  ParityResult result;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const GoldenSequence& golden = *items[i].golden;
    CHECK_EQ(ours[i].size(), golden.logits.size());
    const double scale = largest_magnitude(golden.logits);
    double largest = 0.0;
    double sum_of_squares = 0.0;
    for (std::size_t j = 0; j < ours[i].size(); ++j) {
      const double error = std::abs(static_cast<double>(ours[i][j]) - static_cast<double>(golden.logits[j])) / scale;
      // max() would drop a NaN.
      largest = error <= largest ? largest : error;
      sum_of_squares += error * error;
    }
    const double rms = std::sqrt(sum_of_squares / static_cast<double>(ours[i].size()));
    const LogitBound bound = logit_bound(dtype_, golden, device_);
    const double share = std::max(largest / bound.largest, rms / bound.rms);
    if (share <= result.worst_share) continue;
    result = {.worst_share = std::isnan(share) ? HUGE_VAL : share,
              .worst_largest_error = largest,
              .worst_sequence = golden.name};
  }
  return result;
}

namespace {

// One sequence of a greedy batch.
struct GreedySequence {
  const GoldenSequence* golden;
  std::int32_t adapter;
  BlockTable blocks;
  std::int32_t row = 0;  // of the sample before
  bool ended = false;

  std::int64_t num_tokens(std::int64_t step) const { return std::ssize(golden->input_ids) + step; }
};

void add_to_plan(StepPlan& plan, GreedySequence& sequence, std::int64_t step) {
  const std::int64_t cached = step == 0 ? 0 : sequence.num_tokens(step) - 1;
  CHECK(sequence.blocks.grow_to_tokens(sequence.num_tokens(step)));
  const auto row = static_cast<std::int32_t>(plan.sequences.size());
  plan.sequences.push_back({.state_slot = row,
                            .source = step == 0 ? TokenSource::kHost : TokenSource::kPreviousSample,
                            .source_row = sequence.row,
                            .input_begin = std::ssize(plan.input_ids),
                            .query_length = static_cast<std::int32_t>(sequence.num_tokens(step) - cached),
                            .cached_length = static_cast<std::int32_t>(cached),
                            .block_begin = std::ssize(plan.block_ids),
                            .num_blocks = static_cast<std::int32_t>(sequence.blocks.num_blocks()),
                            .adapter = sequence.adapter,
                            .logit_rows = 1});
  const std::vector<std::int64_t>& prompt = sequence.golden->input_ids;
  if (step == 0) plan.input_ids.insert(plan.input_ids.end(), prompt.begin(), prompt.end());
  const std::span<const std::int32_t> ids = sequence.blocks.block_ids();
  plan.block_ids.insert(plan.block_ids.end(), ids.begin(), ids.end());
  sequence.row = row;
}

}  // namespace

std::string ParityRun::greedy_difference(const GoldenRun& run) {
  BlockAllocator allocator(engine_->info().num_blocks, BlockOrder::kShuffled, /*seed=*/3);
  std::vector<GreedySequence> batch;
  for (const Item& item : items_of(run)) {
    batch.push_back({.golden = item.golden, .adapter = item.adapter, .blocks = BlockTable(allocator)});
  }
  // Plans hold sequences with one query token first.
  std::stable_partition(batch.begin(), batch.end(), [](const auto& s) { return s.golden->input_ids.size() == 1; });
  StepPlan plan;
  for (std::int64_t step = 0;; ++step) {
    std::erase_if(batch, [&](const GreedySequence& s) {
      return s.ended || step == std::ssize(s.golden->greedy) || s.num_tokens(step) > engine_->info().max_positions;
    });
    if (batch.empty()) return "";
    plan.clear();
    for (GreedySequence& sequence : batch) add_to_plan(plan, sequence, step);
    const std::vector<SampledToken>& samples = engine_->step(plan).samples;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const GoldenSequence& golden = *batch[i].golden;
      const auto at = static_cast<std::size_t>(step);
      const std::int64_t token = samples.at(i).token;
      if (token == golden.greedy[at]) continue;
      batch[i].ended = true;  // what follows a near tie may differ
      const double bound = logit_bound(dtype_, golden, device_).largest * largest_magnitude(golden.logits);
      if (static_cast<double>(golden.gap[at]) <= 2 * bound) continue;
      return fmt::format("{} step {}: token {}, expected {} with gap {}", golden.name, step, token, golden.greedy[at],
                         golden.gap[at]);
    }
  }
}

}  // namespace shoal
