#include "cache/kv_cache.h"

#include "core/block_size.h"
#include "core/check.h"

namespace shoal {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

// One block of one layer's keys, or values.
std::int64_t part_bytes_per_block(const KvCacheShape& shape) {
  return kBlockSize * shape.kv_heads * shape.head_dim * dtype_bytes(shape.dtype);
}

}  // namespace

std::int64_t KvCache::bytes_per_block(const KvCacheShape& shape) {
  return 2 * shape.num_layers * part_bytes_per_block(shape);
}

KvCache::KvCache(const KvCacheShape& shape, std::int64_t num_blocks, const Allocator& allocator)
    : shape_(shape),
      num_blocks_(num_blocks),
      part_bytes_((num_blocks * part_bytes_per_block(shape) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes),
      buffer_(allocator, 2 * shape.num_layers * part_bytes_) {
  CHECK_GE(num_blocks, 1);
  CHECK(is_float(shape.dtype) || shape.dtype == DType::kFloat8E4M3);
}

Tensor KvCache::key(std::int64_t layer) const { return part(2 * layer); }

Tensor KvCache::value(std::int64_t layer) const { return part(2 * layer + 1); }

Tensor KvCache::part(std::int64_t index) const {
  CHECK_GE(index, 0);
  CHECK_LT(index, 2 * shape_.num_layers);
  return buffer_.view(shape_.dtype, {num_blocks_, kBlockSize, shape_.kv_heads, shape_.head_dim}, index * part_bytes_);
}

}  // namespace shoal
