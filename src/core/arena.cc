#include "core/arena.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSmallestChunk = 1 << 20;

}  // namespace

Tensor Arena::take(DType dtype, std::initializer_list<std::int64_t> shape) {
  const Tensor wanted(nullptr, dtype, shape);
  const std::int64_t num_bytes = (wanted.num_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && offset_bytes_ + num_bytes > chunks_[chunk_].num_bytes()) {
    ++chunk_;
    offset_bytes_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.emplace_back(allocator_, std::max({num_bytes, kSmallestChunk, capacity_bytes() / 2}));
    ++generation_;
    offset_bytes_ = 0;
  }
  const Tensor taken = chunks_[chunk_].view(dtype, shape, offset_bytes_);
  offset_bytes_ += num_bytes;
  return taken;
}

void Arena::reset() {
  if (chunks_.size() > 1) {
    const std::int64_t total_bytes = capacity_bytes();
    chunks_.clear();
    chunks_.emplace_back(allocator_, total_bytes);
    ++generation_;
  }
  chunk_ = 0;
  offset_bytes_ = 0;
}

std::int64_t Arena::capacity_bytes() const {
  std::int64_t total = 0;
  for (const Buffer& chunk : chunks_) total += chunk.num_bytes();
  return total;
}

}  // namespace shoal
