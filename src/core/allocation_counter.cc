#include "core/allocation_counter.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace shoal::test {
namespace {

std::atomic<std::int64_t> allocations = 0;

std::size_t rounded(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment) / alignment * alignment;  // never 0
}

void* counted_alloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* counted_alloc(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::aligned_alloc(align, rounded(bytes, align));
}

void* checked(void* data) {
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

std::int64_t num_allocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace shoal::test

// Each form of `new`, or a sanitizer's own would meet our `delete`: std::stable_partition allocates by the nothrow one.
void* operator new(std::size_t bytes) { return shoal::test::checked(shoal::test::counted_alloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return shoal::test::checked(shoal::test::counted_alloc(bytes, alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return shoal::test::counted_alloc(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t& /*tag*/) noexcept {
  return shoal::test::counted_alloc(bytes, alignment);
}

void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*bytes*/) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t /*alignment*/) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept { std::free(data); }

// What host_allocator() calls.
extern "C" int posix_memalign(void** data, std::size_t alignment, std::size_t bytes) noexcept {
  *data = shoal::test::counted_alloc(bytes, std::align_val_t(alignment));
  return *data == nullptr ? ENOMEM : 0;
}
