#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "core/result.h"

namespace shoal {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kHugePage = 2 << 20;

void* host_allocate(std::int64_t bytes) {
  const std::int64_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const std::int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (::posix_memalign(&data, static_cast<std::size_t>(alignment), static_cast<std::size_t>(rounded)) != 0) {
    throw StartError(fmt::format("out of host memory: {} bytes asked for", bytes));
  }
  // Weights are walked end to end each step: huge pages save the page-table misses. A refusal is harmless.
  if (bytes >= kHugePage) ::madvise(data, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  return data;
}

void host_release(void* data, std::int64_t /*bytes*/) { std::free(data); }

}  // namespace

const Allocator& host_allocator() {
  static constexpr Allocator kHost{.allocate = host_allocate, .release = host_release};
  return kHost;
}

Buffer::Buffer(const Allocator& allocator, std::int64_t num_bytes)
    : num_bytes_(num_bytes), release_(allocator.release) {
  CHECK_GE(num_bytes, 0);
  if (num_bytes > 0) data_ = allocator.allocate(num_bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) release_(data_, num_bytes_);
}

Tensor Buffer::view(DType dtype, std::span<const std::int64_t> shape, std::int64_t byte_offset) const {
  const Tensor tensor(static_cast<std::byte*>(data_) + byte_offset, dtype, shape);
  CHECK_LE(byte_offset + tensor.num_bytes(), num_bytes_);
  return tensor;
}

}  // namespace shoal
