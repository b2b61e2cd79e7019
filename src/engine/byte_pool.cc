#include "engine/byte_pool.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace shoal {

BytePool::BytePool(std::int64_t num_bytes) : num_bytes_(num_bytes / kAlignment * kAlignment) {
  if (num_bytes_ > 0) holes_.emplace(0, num_bytes_);
}

std::optional<std::int64_t> BytePool::take(std::int64_t num_bytes) {
  const std::int64_t wanted = rounded(num_bytes);
  if (wanted == 0) return 0;  // nothing lies anywhere; a hole of no bytes would stand in the way of others
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& each) { return each.second >= wanted; });
  if (hole == holes_.end()) return std::nullopt;
  const auto [offset, hole_bytes] = *hole;
  holes_.erase(hole);
  if (hole_bytes > wanted) holes_.emplace(offset + wanted, hole_bytes - wanted);
  used_bytes_ += wanted;
  return offset;
}

void BytePool::give_back(std::int64_t offset, std::int64_t num_bytes) {
  if (num_bytes == 0) return;
  std::int64_t begin = offset;
  std::int64_t end = offset + rounded(num_bytes);
  used_bytes_ -= end - begin;
  CHECK_GE(used_bytes_, 0);
  auto next = holes_.lower_bound(begin);
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    CHECK_LE(before->first + before->second, begin);  // else it was free already
    if (before->first + before->second == begin) {
      begin = before->first;
      holes_.erase(before);
    }
  }
  if (next != holes_.end()) {
    CHECK_LE(end, next->first);
    if (next->first == end) {
      end += next->second;
      holes_.erase(next);
    }
  }
  holes_.emplace(begin, end - begin);
}

}  // namespace shoal
