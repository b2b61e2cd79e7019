// KvCache: the memory of all cache blocks, one key and one value tensor a layer. Owned by the engine, read by
// Attention in layers/.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/tensor.h"

namespace shoal {

struct KvCacheShape {
  std::int64_t num_layers = 0;
  std::int64_t kv_heads = 0;  // of this rank
  std::int64_t head_dim = 0;
  DType dtype = DType::kFloat32;
};

class KvCache {
 public:
  // Bytes of one block over all layers, keys and values.
  static std::int64_t bytes_per_block(const KvCacheShape& shape);

  // Throws StartError when there is too little.
  KvCache(const KvCacheShape& shape, std::int64_t num_blocks, const Allocator& allocator);

  std::int64_t num_layers() const { return shape_.num_layers; }
  std::int64_t num_blocks() const { return num_blocks_; }
  DType dtype() const { return shape_.dtype; }
  std::int64_t num_bytes() const { return buffer_.num_bytes(); }

  Tensor key(std::int64_t layer) const;    // [num_blocks, 16, kv_heads, head_dim]
  Tensor value(std::int64_t layer) const;  // like key

 private:
  Tensor part(std::int64_t index) const;  // keys of layer l at 2l, values at 2l + 1

  KvCacheShape shape_;
  std::int64_t num_blocks_;
  std::int64_t part_bytes_;  // of one tensor, rounded up to keep each aligned
  Buffer buffer_;
};

}  // namespace shoal
