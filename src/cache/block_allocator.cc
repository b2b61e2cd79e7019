#include "cache/block_allocator.h"

#include <limits>
#include <utility>

#include "core/check.h"

namespace shoal {

BlockAllocator::BlockAllocator(std::int64_t num_blocks, BlockOrder order, std::uint64_t seed)
    : order_(order), random_(seed) {
  CHECK_GE(num_blocks, 0);
  CHECK_LE(num_blocks, std::numeric_limits<std::int32_t>::max());
  state_.resize(static_cast<std::size_t>(num_blocks));
  free_.reserve(state_.size());
  if (order == BlockOrder::kShuffled) poison_.reserve(state_.size());
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) free_.push_back(static_cast<std::int32_t>(block));
}

bool BlockAllocator::allocate(std::int64_t count, std::vector<std::int32_t>& block_ids) {
  CHECK_GE(count, 0);
  if (count > num_free()) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    if (order_ == BlockOrder::kShuffled) std::swap(free_[random_() % free_.size()], free_.back());
    const std::int32_t block = free_.back();
    free_.pop_back();
    BlockState& state = state_[static_cast<std::size_t>(block)];
    CHECK(!state.used);
    state.used = true;
    block_ids.push_back(block);
  }
  return true;
}

void BlockAllocator::free(std::span<const std::int32_t> block_ids) {
  // Back to front: a sequence that takes them all again gets them in the same order.
  for (std::size_t i = block_ids.size(); i-- > 0;) {
    const std::int32_t block = block_ids[i];
    CHECK_GE(block, 0);
    CHECK_LT(block, num_blocks());
    BlockState& state = state_[static_cast<std::size_t>(block)];
    CHECK(state.used);
    state.used = false;
    free_.push_back(block);
    if (order_ == BlockOrder::kShuffled && !state.listed) {
      state.listed = true;
      poison_.push_back(block);
    }
  }
}

void BlockAllocator::take_poison(std::vector<std::int32_t>& block_ids) {
  for (const std::int32_t block : poison_) {
    state_[static_cast<std::size_t>(block)].listed = false;
    block_ids.push_back(block);
  }
  poison_.clear();
}

}  // namespace shoal
