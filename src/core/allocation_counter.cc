#include "core/allocation_counter.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace shoal::test {
namespace {

std::atomic<std::int64_t> allocations = 0;

void* counted(void* data) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

std::size_t rounded(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment) / alignment * alignment;  // never 0
}

}  // namespace

std::int64_t num_allocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace shoal::test

void* operator new(std::size_t bytes) { return shoal::test::counted(std::malloc(bytes == 0 ? 1 : bytes)); }

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return shoal::test::counted(std::aligned_alloc(align, shoal::test::rounded(bytes, align)));
}

void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*bytes*/) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t /*alignment*/) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept { std::free(data); }

// What host_allocator() calls.
extern "C" int posix_memalign(void** data, std::size_t alignment, std::size_t bytes) noexcept {
  shoal::test::allocations.fetch_add(1, std::memory_order_relaxed);
  *data = std::aligned_alloc(alignment, shoal::test::rounded(bytes, alignment));
  return *data == nullptr ? ENOMEM : 0;
}
