// The size of a key/value cache block, which kernels, cache memory and planning agree on. Used by ops, cache and
// scheduler.
#pragma once

#include <cstdint>

namespace shoal {

inline constexpr std::int64_t kBlockSize = 16;  // tokens of a cache block

// Blocks that hold `num_tokens` tokens.
inline constexpr std::int64_t blocks_for_tokens(std::int64_t num_tokens) {
  return (num_tokens + kBlockSize - 1) / kBlockSize;
}

}  // namespace shoal
