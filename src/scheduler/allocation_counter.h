// Counts allocations of a test program, which links allocation_counter.cc. Used by tests of what must not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

// Calls of operator new by this thread so far.
std::int64_t num_allocations();

}  // namespace shoal::test
