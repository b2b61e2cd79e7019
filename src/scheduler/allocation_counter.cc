#include "scheduler/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace shoal::test {
namespace {

thread_local std::int64_t allocations = 0;

}  // namespace

std::int64_t num_allocations() { return allocations; }

}  // namespace shoal::test

void* operator new(std::size_t bytes) {
  ++shoal::test::allocations;
  if (void* data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}

void operator delete(void* data) noexcept { std::free(data); }

void operator delete(void* data, std::size_t /*bytes*/) noexcept { std::free(data); }
