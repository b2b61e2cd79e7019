// Counter-based random numbers: the same (seed, position) gives the same number on every device and in any batch.
// Used by the backends' sample().
#pragma once

#include <array>
#include <cstdint>

namespace shoal {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four words a counter.
std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, const std::array<std::uint32_t, 4>& counter);

// Uniform in [0, 1), a multiple of 2^-24: word 0 of the block with key `seed` and counter (position, 0, 0, 0).
float uniform_random(std::int64_t seed, std::int32_t position);

}  // namespace shoal
