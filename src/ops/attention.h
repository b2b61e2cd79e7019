// Paged attention: keys and values go to cache blocks, then prefill, chunks and decode all read them through
// block tables. Used by Attention in layers/.
#pragma once

#include <cstdint>
#include <span>

#include "core/block_size.h"
#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal {

// Lengths of the sequences of a step, on the device and on the host (planning reads them there).
// cached = keys already in the cache before this step, so a sequence attends over cached + query keys.
struct SequenceLengths {
  Tensor query;      // i32 [sequences]
  Tensor cached;     // i32 [sequences]
  Tensor cu_query;   // i32 [sequences + 1], cumulative
  Tensor cu_cached;  // i32 [sequences + 1], cumulative
  std::span<const std::int32_t> host_query;
  std::span<const std::int32_t> host_cached;
  std::span<const std::int32_t> host_cu_query;
  std::span<const std::int32_t> host_cu_cached;
  std::int64_t num_decode = 0;  // leading sequences with exactly one query token

  std::int64_t num_sequences() const { return static_cast<std::int64_t>(host_query.size()); }
};

struct AttentionInput {
  Tensor query;         // [tokens, heads, head_dim] activations or float32, rows may be strided
  Tensor key_cache;     // [blocks, 16, kv_heads, head_dim] float32, bfloat16 or float16
  Tensor value_cache;   // like key_cache
  Tensor block_tables;  // i32 [sequences, max_blocks]; entries before the window of every query may be any value
  const SequenceLengths& seqlen;
  float scale = 1.0F;               // scores = query . key * scale
  std::int64_t sliding_window = 0;  // a query sees this many keys, itself included; 0: all
  Tensor alibi_slopes = {};  // float32 [heads] or undefined: scores = (query . key + slope * key_position) * scale
};

struct RotaryWriteInput {
  Tensor query;       // [tokens, heads, head_dim] activations or float32, rows may be strided; rotated in place
  Tensor key, value;  // [tokens, kv_heads, head_dim] likewise; the key's rotation need not be left in `key`
  Tensor positions;   // i32 [tokens]
  Tensor cos_sin;     // float32 [positions, rotary_dim], as for rotary
  RotaryStyle style = RotaryStyle::kHalfSplit;
  Tensor slots;                   // i64 [tokens]
  Tensor key_cache, value_cache;  // [blocks, 16, kv_heads, head_dim] float32, bfloat16 or float16
};

namespace ops {

// key_cache[slots[t] / 16][slots[t] % 16] = key[t], rounded to the cache's dtype; likewise value.
// key, value [tokens, kv_heads, head_dim] activations (rows may be strided), slots i64 [tokens].
void write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots, const Tensor& key_cache,
                 const Tensor& value_cache);

// rotary of query and key, then write_cache: one kernel where the device has it.
void rotary_write_cache(Context& ctx, const RotaryWriteInput& in);

// Causal attention of each sequence's query tokens over its cached + query keys, all in the cache.
// out [tokens, heads, head_dim] activations, must not overlap query. Softmax in float, online over 16-token blocks
// from position 0, so a query's result depends on nothing but its own sequence.
void attention(Context& ctx, const AttentionInput& in, const Tensor& out);

}  // namespace ops
}  // namespace shoal
