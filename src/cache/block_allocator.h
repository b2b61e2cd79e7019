// BlockAllocator hands out numbers of cache blocks. Used by BlockTable and PrefixTree, which give them back; made by
// the scheduler's batch and by the command line's teacher forcing.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace shoal {

// Shuffled is for tests: blocks come in seeded random order, and freed ones are listed to be filled with NaN, so that
// a read of a wrong or stale block shows.
enum class BlockOrder : std::uint8_t { kAscending, kShuffled };

class BlockAllocator {
 public:
  explicit BlockAllocator(std::int64_t num_blocks, BlockOrder order = BlockOrder::kAscending, std::uint64_t seed = 0);

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(state_.size()); }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_used() const { return num_blocks() - num_free(); }

  // Appends `count` blocks to `block_ids`, or nothing and returns false when fewer are free.
  // Ascending: a fresh allocator gives 0, 1, 2, ...; later the block freed last comes first, its memory being warm.
  bool allocate(std::int64_t count, std::vector<std::int32_t>& block_ids);
  // Each must be in use: freeing a block twice is our mistake.
  void free(std::span<const std::int32_t> block_ids);

  // Shuffled: appends the blocks freed since the last call, each once, and forgets them. Ascending: nothing.
  void take_poison(std::vector<std::int32_t>& block_ids);

 private:
  struct BlockState {
    bool used = false;
    bool listed = false;  // in poison_
  };

  BlockOrder order_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> free_;  // the next one is at the back
  std::vector<BlockState> state_;   // [num_blocks]
  std::vector<std::int32_t> poison_;
};

}  // namespace shoal
