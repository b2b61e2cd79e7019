// Buffer: the move-only owner of memory that a backend's Allocator gave; Tensor is the view.
// Used wherever memory outlives a step: weights, cache, arena, adapters.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "core/tensor.h"

namespace shoal {

// A backend's memory functions as a plain table, so that core needs no virtual class.
// `allocate` returns memory aligned to 64 bytes and throws StartError when there is none.
struct Allocator {
  void* (*allocate)(std::int64_t bytes) = nullptr;
  void (*release)(void* data, std::int64_t bytes) = nullptr;
};

// Host memory; large blocks are page-aligned and ask for huge pages.
const Allocator& host_allocator();

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Allocator& allocator, std::int64_t num_bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* raw() const { return data_; }
  std::int64_t num_bytes() const { return num_bytes_; }
  // A contiguous view that starts `byte_offset` bytes in; it must fit.
  Tensor view(DType dtype, std::span<const std::int64_t> shape, std::int64_t byte_offset = 0) const;
  Tensor view(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t byte_offset = 0) const {
    return view(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), byte_offset);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  std::int64_t num_bytes_ = 0;
  void (*release_)(void* data, std::int64_t bytes) = nullptr;
};

}  // namespace shoal
