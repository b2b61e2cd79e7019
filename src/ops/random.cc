#include "ops/random.h"

#include <bit>

namespace shoal {

std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, const std::array<std::uint32_t, 4>& counter) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  std::array<std::uint32_t, 4> x = counter;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return x;
}

float uniform_random(std::int64_t seed, std::int32_t position) {
  const auto block =
      philox4x32(std::bit_cast<std::uint64_t>(seed), {std::bit_cast<std::uint32_t>(position), 0U, 0U, 0U});
  return static_cast<float>(block[0] >> 8) * 0x1p-24F;
}

}  // namespace shoal
