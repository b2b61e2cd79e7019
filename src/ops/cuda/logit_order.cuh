// The order of logits as one integer: by value, then by id. Used by sampling.cu and ranking.cu.
#pragma once

#include <cstdint>

namespace shoal::cuda {

// Rises with the value: the integer order of floats. Both zeros are one value.
__device__ inline std::uint32_t rising_key(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ inline float value_of_rising_key(std::uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffU : ~key);
}

// The larger, the better the logit, and among equal logits the smaller the id.
__device__ inline unsigned long long best_of(int id, float logit) {
  return (static_cast<unsigned long long>(rising_key(logit)) << 32) | ~static_cast<std::uint32_t>(id);
}
__device__ inline float logit_of_best(unsigned long long best) {
  return value_of_rising_key(static_cast<std::uint32_t>(best >> 32));
}
__device__ inline std::int64_t id_of_best(unsigned long long best) { return ~static_cast<std::uint32_t>(best); }

}  // namespace shoal::cuda
