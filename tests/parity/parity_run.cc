#include "parity/parity_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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

 private:
  std::string folder_;
};

ParityRun::ParityRun(const GoldenCase& golden, const Backend& backend, DType dtype)
    : golden_(golden), dtype_(dtype), source_(std::make_unique<FolderSource>(golden.folder)) {
  EngineOptions options;
  options.model_path = golden.folder;
  options.dtype = dtype;
  options.kv_cache_bytes = std::int64_t{16} << 20;
  for (const GoldenRun& run : golden.runs) {
    for (const GoldenSequence& sequence : run.sequences) {
      options.min_served_positions =
          std::max(options.min_served_positions, static_cast<std::int64_t>(sequence.input_ids.size()));
    }
  }
  engine_ = std::make_unique<ModelEngine>(options, backend, *source_, wakeup_);
  for (const GoldenRun& run : golden.runs) {
    AdapterHandle handle;
    if (!run.adapter.empty()) {
      handle = engine_->acquire_adapter({.id = run.adapter});
      while (engine_->adapter_status(handle).state == AdapterState::kLoading) wakeup_.wait();
      const AdapterStatus status = engine_->adapter_status(handle);
      if (status.state == AdapterState::kFailed) throw StartError(status.error->message);
    }
    adapters_.push_back(handle);
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
    const LogitBound bound = logit_bound(dtype_, golden);
    const double share = std::max(largest / bound.largest, rms / bound.rms);
    if (share <= result.worst_share) continue;
    result = {.worst_share = std::isnan(share) ? HUGE_VAL : share,
              .worst_largest_error = largest,
              .worst_sequence = golden.name};
  }
  return result;
}

std::string ParityRun::greedy_difference(const GoldenRun& run) {
  BlockAllocator allocator(engine_->info().num_blocks, BlockOrder::kShuffled, /*seed=*/3);
  for (const Item& item : items_of(run)) {
    const GoldenSequence& golden = *item.golden;
    const double bound = logit_bound(dtype_, golden).largest * largest_magnitude(golden.logits);
    const auto prompt = static_cast<std::int64_t>(golden.input_ids.size());
    BlockTable blocks(allocator);
    StepPlan plan;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(golden.greedy.size()); ++i) {
      const std::int64_t cached = i == 0 ? 0 : prompt + i - 1;
      const std::int64_t query = i == 0 ? prompt : 1;
      if (cached + query > engine_->info().max_positions) break;
      CHECK(blocks.grow_to_tokens(cached + query));
      plan.clear();
      plan.sequences.push_back({.source = i == 0 ? TokenSource::kHost : TokenSource::kPreviousSample,
                                .query_length = static_cast<std::int32_t>(query),
                                .cached_length = static_cast<std::int32_t>(cached),
                                .num_blocks = static_cast<std::int32_t>(blocks.num_blocks()),
                                .adapter = item.adapter,
                                .logit_rows = 1});
      if (i == 0) plan.input_ids = golden.input_ids;
      plan.block_ids.assign(blocks.block_ids().begin(), blocks.block_ids().end());
      const std::int64_t token = engine_->step(plan).samples.at(0).token;
      const auto step = static_cast<std::size_t>(i);
      if (token == golden.greedy[step]) continue;
      if (static_cast<double>(golden.gap[step]) <= 2 * bound) break;  // a near tie: what follows may differ
      return fmt::format("{} step {}: token {}, expected {} with gap {}", golden.name, i, token, golden.greedy[step],
                         golden.gap[step]);
    }
  }
  return "";
}

}  // namespace shoal
