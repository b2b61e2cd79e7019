// BytePool: which bytes of one reservation are taken. Numbers only, no memory. Used by AdapterTiers, once a tier.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace shoal {

class BytePool {
 public:
  explicit BytePool(std::int64_t num_bytes);
  static constexpr std::int64_t kAlignment = 256;  // what wide loads of a device want

  // Where `num_bytes` in one piece begin, the lowest place that has them; none where no hole is large enough.
  std::optional<std::int64_t> take(std::int64_t num_bytes);
  // Gives back exactly what take() gave.
  void give_back(std::int64_t offset, std::int64_t num_bytes);

  std::int64_t num_bytes() const { return num_bytes_; }
  std::int64_t used_bytes() const { return used_bytes_; }  // rounded up, as they lie
  static std::int64_t rounded(std::int64_t num_bytes) { return (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  std::int64_t num_bytes_;
  std::int64_t used_bytes_ = 0;
  std::map<std::int64_t, std::int64_t> holes_;  // offset -> bytes; no two touch
};

}  // namespace shoal
