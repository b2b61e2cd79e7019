// AdapterBatchData: which adapter each token of a step uses, grouped for the ops. Built by the engine, read by layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "lora/adapter_weights.h"
#include "ops/lora.h"
#include "ops/staging.h"

namespace shoal {

struct AdapterBatchData {
  // One entry an adapter in the step, in the order of `tokens.groups`; speculation heads will be found here too.
  std::span<const AdapterWeights* const> adapters;
  LoraBatch tokens;  // rows are the step's tokens
  LoraBatch logits;  // rows are the rows of lm_head_indices
};

// Groups rows by adapter without allocating once it is warm. One for tokens, one for logits rows.
class AdapterGrouping {
 public:
  // What stands by adapter grows with their number, which only a load raises.
  void reserve(std::int64_t max_rows);
  // rows[i] uses adapters[row_adapters[i]]; -1 = base.
  void build(std::span<const std::int32_t> row_adapters, std::span<const AdapterWeights* const> adapters);
  LoraBatch batch() const;
  // What stands in for `batch()` on another device: its arrays by `staging`, in room for `max_rows`.
  LoraBatch staged_batch(Staging& staging, std::size_t max_rows);

 private:
  std::vector<LoraGroup> groups_;
  std::vector<std::int32_t> token_rows_;
  std::vector<LoraGroupRef> group_refs_;
  std::vector<std::int64_t> next_;  // by adapter: where its next row goes; zeros between builds
  std::vector<std::int32_t> used_;  // the adapters of these rows, ascending
  std::int64_t max_rank_ = 0;
};

}  // namespace shoal
