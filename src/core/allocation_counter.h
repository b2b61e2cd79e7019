// Counts allocations of a test program, which links allocation_counter.cc. Used by tests of what must not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

// Allocations by operator new and by host_allocator() so far, of all threads.
std::int64_t num_allocations();

}  // namespace shoal::test
