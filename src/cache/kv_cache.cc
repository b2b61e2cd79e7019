#include "cache/kv_cache.h"

#include <cstring>

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

KvCache::KvCache(const KvCacheShape& shape, std::int64_t num_blocks, const Allocator& allocator, DeviceKind device)
    : shape_(shape),
      num_blocks_(num_blocks),
      device_(device),
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

void KvCache::copy(std::int64_t from, std::int64_t to) {
  CHECK(device_ == DeviceKind::kCpu);
  for (std::int64_t index = 0; index < 2 * shape_.num_layers; ++index) {
    const Tensor source = part(index).rows(from, 1);
    std::memcpy(part(index).rows(to, 1).raw(), source.raw(), static_cast<std::size_t>(source.num_bytes()));
  }
}

void KvCache::poison(std::int64_t block) {
  CHECK(device_ == DeviceKind::kCpu);
  for (std::int64_t index = 0; index < 2 * shape_.num_layers; ++index) {
    const Tensor rows = part(index).rows(block, 1);
    // All bits set is a NaN in each dtype that a cache may have.
    std::memset(rows.raw(), 0xff, static_cast<std::size_t>(rows.num_bytes()));
  }
}

}  // namespace shoal
