#include "parity/drawn_case.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "engine/pin_adapter.h"

namespace shoal {
namespace {

std::string adapter_name(std::size_t index) { return fmt::format("adapter_{}", index); }

// The first sequence uses the first adapter. One sequence is near the longest length if `with_long`.
std::vector<DrawnSequence> draw_batch(const DrawnModel& model, std::int64_t num_adapters, bool with_long, Draw& draw) {
  std::vector<DrawnSequence> batch(static_cast<std::size_t>(draw.between(1, 9)));
  const std::int64_t cap = std::min(model.longest, kShortDrawnSequence);
  for (DrawnSequence& sequence : batch) {
    sequence.input_ids.resize(static_cast<std::size_t>(draw.between(1, draw.chance(50) ? cap : std::min(cap, 9L))));
    sequence.adapter = static_cast<int>(draw.between(-1, num_adapters - 1));
  }
  batch.front().adapter = 0;
  if (with_long) {
    auto& longest = batch[static_cast<std::size_t>(draw.between(0, std::ssize(batch) - 1))].input_ids;
    longest.resize(static_cast<std::size_t>(draw.between(model.longest * 2 / 3, model.longest)));
  }
  for (DrawnSequence& sequence : batch) {
    for (std::int64_t& id : sequence.input_ids) id = draw.between(0, model.vocab - 1);
  }
  return batch;
}

std::string make_temporary_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "shoal_drawn_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw StartError(pattern + ": no temporary folder can be made");
  return pattern;
}

EngineOptions engine_options(const DrawnCase& drawn, const std::string& folder, DType dtype) {
  std::int64_t blocks = 0;
  for (const DrawnSequence& sequence : drawn.batch) blocks += std::ssize(sequence.input_ids) / kBlockSize + 1;
  const DrawnModel& model = drawn.model;
  EngineOptions options;
  options.model_path = folder;
  options.dtype = dtype;
  options.kv_cache_bytes =
      blocks *
      KvCache::bytes_per_block(
          {.num_layers = model.layers, .kv_heads = model.kv_heads, .head_dim = model.head_dim, .dtype = dtype});
  options.adapters = {.device_bytes = std::int64_t{64} << 20, .host_bytes = std::int64_t{64} << 20};
  // The rotary families serve past the config's length when they are told to.
  if (model.family != DrawnFamily::kSantaCoder) options.min_served_positions = model.longest;
  return options;
}

}  // namespace

DrawnCase::DrawnCase(DrawnFamily family, std::uint64_t case_seed)
    : seed(case_seed), draw(case_seed), model(draw_model(family, draw)), folder(make_temporary_folder()) {
  const std::int64_t num_adapters = draw.between(1, 3);
  write_model(model, folder);
  for (std::int64_t i = 0; i < num_adapters; ++i) {
    adapters.push_back(draw_adapter(model, draw.one_of<std::int64_t>({1, 3, 8, 64, 256}), draw));
    const std::string adapter_folder = folder + "/" + adapter_name(static_cast<std::size_t>(i));
    std::filesystem::create_directory(adapter_folder);
    write_adapter(adapters.back(), adapter_folder);
  }
  batch = draw_batch(model, num_adapters, has_long(), draw);
}

DrawnCase::~DrawnCase() {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

std::string DrawnCase::merged_folder() {
  std::string merged = folder + "/merged";
  if (std::filesystem::create_directory(merged)) write_model(merge(model, adapters.front()), merged);
  return merged;
}

std::vector<std::size_t> DrawnCase::up_to_tokens(std::int64_t tokens) const {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (std::ssize(batch[i].input_ids) <= tokens) chosen.push_back(i);
  }
  return chosen;
}

std::string DrawnCase::describe() const {
  std::vector<std::string> parts;
  for (const DrawnAdapter& adapter : adapters) parts.push_back(adapter.describe());
  for (const DrawnSequence& sequence : batch) {
    parts.push_back(fmt::format("{} tokens of {}", sequence.input_ids.size(), sequence.adapter));
  }
  return fmt::format("seed {}: {}; {}", seed, model.describe(), fmt::join(parts, "; "));
}

LoadedCase::LoadedCase(const DrawnCase& drawn, const std::string& folder, const Backend& backend, DType dtype)
    : drawn_(drawn), source_(folder), engine_(engine_options(drawn, folder, dtype), backend, source_, wakeup_) {
  for (std::size_t i = 0; i < drawn.adapters.size(); ++i) {
    if (!std::filesystem::exists(std::filesystem::path(folder) / adapter_name(i))) continue;
    const Result<HeldAdapter> held =
        pin_when_ready(engine_, wakeup_, {.id = adapter_name(i)}, static_cast<std::int64_t>(i));
    if (!held.ok()) throw StartError(held.error().message);
    CHECK_EQ(held.value().adapter.modules, std::ssize(drawn.adapters[i].deltas));
    slots_.push_back(held.value().adapter.slot);
  }
}

std::vector<std::vector<float>> LoadedCase::run(const std::vector<std::size_t>& chosen, TeacherForcingOptions options) {
  std::vector<ForcedSequence> sequences;
  sequences.reserve(chosen.size());
  for (const std::size_t index : chosen) {
    const DrawnSequence& sequence = drawn_.batch[index];
    const bool adapted = sequence.adapter >= 0 && !slots_.empty();
    sequences.push_back({.input_ids = sequence.input_ids,
                         .adapter = adapted ? slots_[static_cast<std::size_t>(sequence.adapter)] : -1});
  }
  options.block_order = BlockOrder::kShuffled;
  std::vector<std::vector<float>> logits(sequences.size());
  run_teacher_forcing(engine_, sequences, options,
                      [&](std::size_t sequence, std::int64_t /*first_position*/, const Tensor& rows) {
                        const std::span<const float> values = rows.span<float>();
                        logits[sequence].insert(logits[sequence].end(), values.begin(), values.end());
                      });
  return logits;
}

}  // namespace shoal
