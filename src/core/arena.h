// Arena: the scratch memory of one step, handed out front to back and taken back all at once.
// Owned by the engine, reached through ops::Context; grows only while the engine warms up.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/buffer.h"

namespace shoal {

class Arena {
 public:
  explicit Arena(const Allocator& allocator) : allocator_(allocator) {}

  // An uninitialised contiguous tensor, 64-byte aligned, valid until the scope that took it ends.
  Tensor take(DType dtype, std::initializer_list<std::int64_t> shape);
  // Starts a new step: all tensors are void. Chunks that a larger step added are merged into one.
  void reset();

  std::int64_t capacity_bytes() const;
  // Grows whenever memory is taken or given back: what an earlier value saw may lie elsewhere now.
  std::int64_t generation() const { return generation_; }

  // Gives back what was taken since it was made, for scratch inside a layer.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), chunk_(arena.chunk_), offset_bytes_(arena.offset_bytes_) {}
    ~Scope() {
      arena_.chunk_ = chunk_;
      arena_.offset_bytes_ = offset_bytes_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t chunk_;
    std::int64_t offset_bytes_;
  };

 private:
  Allocator allocator_;
  std::vector<Buffer> chunks_;
  std::int64_t generation_ = 0;
  std::size_t chunk_ = 0;          // the chunk in use
  std::int64_t offset_bytes_ = 0;  // first free byte of that chunk
};

}  // namespace shoal
