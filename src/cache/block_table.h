// BlockTable: the cache blocks of one sequence. Owned by the scheduler's sequences and by teacher forcing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/prefix_tree.h"

namespace shoal {

// The blocks of one sequence, in the order of its tokens; they go back when it is cleared or destroyed. With a
// PrefixTree the leading ones are held together with others and never written again; the rest are its own.
class BlockTable {
 public:
  // Both outlive the table. Without `prefixes` (null) nothing is shared.
  explicit BlockTable(BlockAllocator& allocator, PrefixTree* prefixes = nullptr)
      : allocator_(&allocator), prefixes_(prefixes) {}
  ~BlockTable() { clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Only with prefixes, on an empty table: takes the blocks of a match of the same key.
  void start(const PrefixKey& key, const PrefixTree::Match& match);
  // Shares the full blocks of `computed_tokens`, the sequence's leading tokens whose keys and values are in the cache.
  // Where another sequence was first with the same text, its block replaces the table's own. Without a start: nothing.
  void share(std::span<const std::int64_t> computed_tokens);

  // Makes room for `num_tokens` tokens, evicting shared blocks that nobody holds; false, and nothing taken, when too
  // few blocks are to be had.
  bool grow_to_tokens(std::int64_t num_tokens);
  // Memory for the ids of that many tokens' blocks, so that growing to them allocates nothing.
  void reserve_tokens(std::int64_t num_tokens);
  void clear();

  // -1: a block before the sliding window that a match left out.
  std::span<const std::int32_t> block_ids() const { return block_ids_; }
  std::int64_t num_blocks() const { return static_cast<std::int64_t>(block_ids_.size()); }
  std::int64_t num_shared() const { return path_.num_blocks; }

 private:
  void swap(BlockTable& other) noexcept;

  BlockAllocator* allocator_;
  PrefixTree* prefixes_;
  PrefixTree::Path path_;  // of the leading, shared blocks
  std::vector<std::int32_t> block_ids_;
};

}  // namespace shoal
