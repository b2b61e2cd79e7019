// The plain wide read that memory bandwidth is measured by. Used by `shoal bench` and shoal_ops_bench.
#pragma once

#include <cstdint>

namespace shoal {

// The sum of `count` words, a multiple of 128, so that none is left unread. Four streams with prefetch: one alone does
// not reach what a core can read.
inline std::int64_t wide_sum(const std::int64_t* words, std::int64_t count) {
  using Wide = std::int64_t __attribute__((vector_size(16), may_alias));
  const auto* vectors = reinterpret_cast<const Wide*>(words);
  const std::int64_t stream = count / 2 / 4;
  Wide sums[4] = {};
  for (std::int64_t i = 0; i < stream; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const Wide* line = vectors + j * stream + i;
      __builtin_prefetch(reinterpret_cast<const char*>(line) + 1024, 0, 3);
      for (int k = 0; k < 4; ++k) sums[k] += line[k];
    }
  }
  const Wide total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return total[0] + total[1];
}

}  // namespace shoal
