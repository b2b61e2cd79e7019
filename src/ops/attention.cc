#include "ops/attention.h"

#include <algorithm>

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {
namespace {

using op_checks::check_activations;
using op_checks::check_contiguous;
using op_checks::kAnyExtent;

void check_caches(const Tensor& key_cache, const Tensor& value_cache) {
  CHECK(is_float(key_cache.dtype()));
  check_contiguous(key_cache, key_cache.dtype(), {kAnyExtent, kBlockSize, kAnyExtent, kAnyExtent});
  check_contiguous(value_cache, key_cache.dtype(), {key_cache.dim(0), kBlockSize, key_cache.dim(2), key_cache.dim(3)});
  CHECK_GT(key_cache.dim(2) * key_cache.dim(3), 0);
}

void check_lengths(const SequenceLengths& seqlen, std::int64_t num_tokens) {
  const std::int64_t sequences = seqlen.num_sequences();
  check_contiguous(seqlen.query, DType::kInt32, {sequences});
  check_contiguous(seqlen.cached, DType::kInt32, {sequences});
  check_contiguous(seqlen.cu_query, DType::kInt32, {sequences + 1});
  check_contiguous(seqlen.cu_cached, DType::kInt32, {sequences + 1});
  CHECK_EQ(std::ssize(seqlen.host_cached), sequences);
  CHECK_EQ(std::ssize(seqlen.host_cu_query), sequences + 1);
  CHECK_EQ(std::ssize(seqlen.host_cu_cached), sequences + 1);
  CHECK_LE(seqlen.num_decode, sequences);
  CHECK_EQ(seqlen.host_cu_query[0], 0);
  CHECK_EQ(seqlen.host_cu_cached[0], 0);
  for (std::size_t i = 0; i < seqlen.host_query.size(); ++i) {
    CHECK_GE(seqlen.host_query[i], 0);
    CHECK_GE(seqlen.host_cached[i], 0);
    CHECK_EQ(seqlen.host_cu_query[i + 1], seqlen.host_cu_query[i] + seqlen.host_query[i]);
    CHECK_EQ(seqlen.host_cu_cached[i + 1], seqlen.host_cu_cached[i] + seqlen.host_cached[i]);
    if (static_cast<std::int64_t>(i) < seqlen.num_decode) CHECK_EQ(seqlen.host_query[i], 1);
  }
  CHECK_EQ(std::int64_t{seqlen.host_cu_query.back()}, num_tokens);
}

// The tables reach the last key, and every block that a query sees exists. Values only where they are host memory.
void check_block_tables(const Context& ctx, const AttentionInput& in) {
  const std::int64_t sequences = in.seqlen.num_sequences();
  check_contiguous(in.block_tables, DType::kInt32, {sequences, kAnyExtent});
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto index = static_cast<std::size_t>(s);
    const std::int64_t cached = in.seqlen.host_cached[index];
    const std::int64_t keys = cached + in.seqlen.host_query[index];
    if (in.seqlen.host_query[index] == 0) continue;
    const std::int64_t num_blocks = (keys + kBlockSize - 1) / kBlockSize;
    CHECK_LE(num_blocks, in.block_tables.dim(1));
    if (ctx.backend.device() != DeviceKind::kCpu) continue;
    const std::int64_t first_key =
        in.sliding_window > 0 ? std::max<std::int64_t>(0, cached - in.sliding_window + 1) : 0;
    const std::int32_t* table = in.block_tables.row<std::int32_t>(s);
    for (std::int64_t block = first_key / kBlockSize; block < num_blocks; ++block) {
      CHECK_GE(table[block], 0);
      CHECK_LT(std::int64_t{table[block]}, in.key_cache.dim(0));
    }
  }
}

void check_write(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots, const Tensor& key_cache,
                 const Tensor& value_cache) {
  check_caches(key_cache, value_cache);
  check_activations(key, {kAnyExtent, key_cache.dim(2), key_cache.dim(3)});
  check_activations(value, {key.dim(0), key_cache.dim(2), key_cache.dim(3)});
  CHECK_EQ(dtype_name(key.dtype()), dtype_name(value.dtype()));
  check_contiguous(slots, DType::kInt64, {key.dim(0)});
  op_checks::check_values(ctx, slots, 0, key_cache.dim(0) * kBlockSize);
}

}  // namespace

void write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots, const Tensor& key_cache,
                 const Tensor& value_cache) {
  check_write(ctx, key, value, slots, key_cache, value_cache);
  if (key.dim(0) == 0) return;
  ctx.backend.write_cache(ctx, key, value, slots, key_cache, value_cache);
}

void rotary_write_cache(Context& ctx, const RotaryWriteInput& in) {
  op_checks::check_rotary(ctx, in.positions, in.cos_sin, in.query);
  op_checks::check_rotary(ctx, in.positions, in.cos_sin, in.key);
  check_write(ctx, in.key, in.value, in.slots, in.key_cache, in.value_cache);
  CHECK_EQ(dtype_name(in.query.dtype()), dtype_name(in.key.dtype()));
  CHECK_EQ(in.query.dim(2), in.key.dim(2));
  if (in.key.dim(0) == 0) return;
  ctx.backend.rotary_write_cache(ctx, in);
}

void attention(Context& ctx, const AttentionInput& in, const Tensor& out) {
  check_caches(in.key_cache, in.value_cache);
  check_activations(in.query, {kAnyExtent, kAnyExtent, in.key_cache.dim(3)});
  check_activations(out, {in.query.dim(0), in.query.dim(1), in.query.dim(2)});
  if (in.query.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(in.query.dtype()), dtype_name(out.dtype()));
  CHECK_GT(in.query.dim(1), 0);
  CHECK_EQ(in.query.dim(1) % in.key_cache.dim(2), 0);
  CHECK_GE(in.sliding_window, 0);
  if (in.alibi_slopes.defined()) check_contiguous(in.alibi_slopes, DType::kFloat32, {in.query.dim(1)});
  if (in.query.dim(0) == 0) return;
  CHECK(!op_checks::overlap(in.query, out));
  check_lengths(in.seqlen, in.query.dim(0));
  check_block_tables(ctx, in);
  ctx.backend.attention(ctx, in, out);
}

}  // namespace shoal::ops
