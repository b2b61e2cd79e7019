// What the attention kernels of this folder are launched with. Used by attention.cu and its kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace shoal::cuda {

struct AttentionArgs {
  const void* query;  // [tokens, heads, head_dim], rows `query_stride` elements apart; float32 or as out
  bool float_query;
  void* out;  // likewise, `out_stride`
  const void* key_cache;
  const void* value_cache;
  const std::int32_t* block_tables;  // [sequences, table_stride]
  const std::int32_t* cu_query;
  const std::int32_t* query_lengths;
  const std::int32_t* cached;
  const float* alibi_slopes;  // or null
  std::int64_t query_stride, out_stride, table_stride;
  int heads, kv_heads, group, head_dim;
  int first_sequence, num_sequences;  // of this launch
  int sliding_window;                 // 0: none
  float scale;
  // Split keys (decode): float [sequences, kv_heads, splits, group, head_dim] and [.., group, 2] of (largest, sum).
  int num_splits;
  float* partial_out;
  float* partial_stats;
};

// Whether the tensor-core kernels take this combination; the plain one takes all.
bool has_fast_attention(DType activations, DType cache, std::int64_t head_dim);

// One block a (token, head): any dtype and head size.
void launch_plain_attention(const AttentionArgs& args, DType activations, DType cache, std::int64_t num_tokens,
                            cudaStream_t stream);
// Sequences of any query length; `max_query` is the longest.
void launch_prefill_attention(const AttentionArgs& args, DType dtype, std::int64_t max_query, cudaStream_t stream);
// Sequences of one query token each.
void launch_decode_attention(const AttentionArgs& args, DType dtype, cudaStream_t stream);

}  // namespace shoal::cuda
