#include "lora/adapter_batch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace shoal {

void AdapterGrouping::reserve(std::int64_t max_rows) {
  used_.reserve(static_cast<std::size_t>(max_rows));
  groups_.reserve(static_cast<std::size_t>(max_rows));
  group_refs_.reserve(2 * static_cast<std::size_t>(max_rows));
  token_rows_.reserve(static_cast<std::size_t>(max_rows));
}

void AdapterGrouping::build(std::span<const std::int32_t> row_adapters,
                            std::span<const AdapterWeights* const> adapters) {
  // A counting sort by adapter: rows keep their order inside a group. Only the adapters of these rows are looked at,
  // so that those in memory that nobody uses now cost a step nothing.
  if (next_.size() < adapters.size()) next_.resize(adapters.size(), 0);
  used_.clear();
  for (const std::int32_t adapter : row_adapters) {
    if (adapter >= 0 && next_[static_cast<std::size_t>(adapter)]++ == 0) used_.push_back(adapter);
  }
  std::sort(used_.begin(), used_.end());
  groups_.clear();
  group_refs_.clear();
  max_rank_ = 0;
  std::int64_t total = 0;
  for (const std::int32_t used : used_) {
    const auto i = static_cast<std::size_t>(used);
    const std::int64_t count = std::exchange(next_[i], total);
    groups_.push_back({.pairs = adapters[i]->pairs(),
                       .pair_refs = adapters[i]->pair_refs(),
                       .token_begin = total,
                       .token_count = count});
    group_refs_.push_back({.pairs = adapters[i]->pair_refs(),
                           .token_begin = static_cast<std::int32_t>(total),
                           .token_count = static_cast<std::int32_t>(count)});
    max_rank_ = std::max(max_rank_, adapters[i]->max_rank());
    total += count;
  }
  token_rows_.resize(static_cast<std::size_t>(total));
  for (std::size_t row = 0; row < row_adapters.size(); ++row) {
    if (row_adapters[row] < 0) continue;
    std::int64_t& slot = next_[static_cast<std::size_t>(row_adapters[row])];
    token_rows_[static_cast<std::size_t>(slot++)] = static_cast<std::int32_t>(row);
  }
  for (const std::int32_t used : used_) next_[static_cast<std::size_t>(used)] = 0;
}

LoraBatch AdapterGrouping::batch() const {
  LoraBatch batch;
  batch.groups = groups_;
  // The op only reads them; Tensor has no const form.
  batch.token_rows = Tensor(const_cast<std::int32_t*>(token_rows_.data()), DType::kInt32,
                            {static_cast<std::int64_t>(token_rows_.size())});
  batch.host_token_rows = token_rows_;
  batch.max_rank = max_rank_;
  return batch;
}

LoraBatch AdapterGrouping::staged_batch(Staging& staging, std::size_t max_rows) {
  LoraBatch staged = batch();
  staged.token_rows = staging.put(token_rows_, DType::kInt32, max_rows);
  // Padded to a power of two with groups of no tokens, so that captured graphs serve many numbers of adapters.
  group_refs_.resize(group_refs_.empty() ? 0 : std::bit_ceil(group_refs_.size()));
  staged.group_refs = staging.put_structs(group_refs_, 2 * max_rows);
  return staged;
}

}  // namespace shoal
