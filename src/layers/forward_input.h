// The forward contract that every model keeps: names, order and meaning are fixed. Built by the engine.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "lora/adapter_batch.h"
#include "ops/attention.h"

namespace shoal {

// The cache blocks of one layer: [blocks, 16, kv_heads, head_dim] in the cache's dtype.
struct LayerCache {
  Tensor key;
  Tensor value;
};

struct ForwardInput {
  const Tensor input_ids;                      // i64 [tokens]: the whole batch, flattened; one-token sequences first
  const Tensor position_ids;                   // i32 [tokens]
  const Tensor cu_seqlen_prefill;              // i32 [sequences + 1]; undefined when every sequence brings one token
  const std::span<const LayerCache> kv_cache;  // one a layer
  const Tensor block_tables;                   // i32 [sequences, max_blocks]
  const Tensor slots;                          // i64 [tokens]: block * 16 + offset where each new key and value goes
  const SequenceLengths& seqlen;
  const std::int32_t max_s;  // longest sequence of the batch
  const AdapterBatchData& adapter_data;
  const Tensor prefill_cache_indices;  // i64 [kept] or undefined = all: which tokens are written to the cache
  const Tensor lm_head_indices;        // i64 [selected] or undefined = all: rows that need logits
  const bool skip_lm_head = false;     // return hidden states instead of logits
};

struct ForwardOutput {
  Tensor logits;              // float32 [selected or tokens, vocab]; with skip_lm_head activations [.., hidden]
  Tensor speculative_logits;  // float32 [rows, heads, vocab]; undefined without a speculation adapter
};

}  // namespace shoal
