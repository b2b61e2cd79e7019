// PrefixTree: which cache blocks hold which text, so that a sequence can start behind what is there already. Block
// numbers only. Used by BlockTable, and by the scheduler's batch for look-ups and counts.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/block_allocator.h"
#include "core/adapter_key.h"
#include "core/block_size.h"

namespace shoal {

// Texts under different keys share no block. A tree belongs to one KvCache, and so to one model and one cache dtype.
struct PrefixKey {
  AdapterIdentity adapter;  // the base model's: zeros
  std::string salt;         // of the tenant

  std::strong_ordering operator<=>(const PrefixKey&) const = default;
};

struct PrefixTreeOptions {
  std::int64_t sliding_window = 0;  // tokens that a query sees; 0: all
  std::int64_t num_buckets = 0;     // of the hash table; 0: twice the blocks. Tests take 1: all texts collide
};

// A node is one full block of text behind its parent's text; found by a hash, taken only if parent and tokens are
// equal. It keeps its block when the last sequence lets go of it, until the allocator runs dry: then the block that was
// let go of first is evicted. Sequences let go of their deepest block first, so a text is evicted from its end.
//
// With a sliding window a sequence needs, and holds, only the blocks that its next query sees. Blocks before them may
// be evicted while deeper ones stay: such a node lives on without a block, to keep the text's beginning known.
class PrefixTree {
 public:
  static constexpr std::int32_t kNoNode = -1;

  // What a text would find. Valid until the tree changes.
  struct Match {
    std::int32_t node = kNoNode;   // of the last block
    std::int64_t num_blocks = 0;   // leading blocks of the text
    std::int64_t first_block = 0;  // the first of them that is needed
    std::int64_t num_idle = 0;     // of the needed ones, those that nobody holds: they could be evicted now
  };

  // What a sequence holds: the blocks [first_block, num_blocks) of its text. Closed while `root` is kNoNode.
  struct Path {
    std::int32_t root = kNoNode;
    std::int32_t node = kNoNode;  // of the last block; the root if there is none
    std::int64_t num_blocks = 0;
    std::int64_t first_block = 0;
  };

  // `allocator` outlives the tree; evicted blocks go back to it.
  PrefixTree(BlockAllocator& allocator, PrefixTreeOptions options = {});

  // The longest known beginning of `tokens`, at most `max_blocks` blocks long. Changes nothing.
  Match find(const PrefixKey& key, std::span<const std::int64_t> tokens, std::int64_t max_blocks) const;

  // Holds the blocks of a match of the same key, and appends their numbers to `block_ids`; -1 before the first that is
  // needed.
  Path open(const PrefixKey& key, const Match& match, std::vector<std::int32_t>& block_ids);
  // The next 16 tokens of the path's text are computed and lie in `block`. Returns the block that the path holds for
  // them: `block`, which is the tree's from now on, or one with the same text that was there first - then `block` stays
  // the caller's.
  std::int32_t extend(Path& path, std::span<const std::int64_t> tokens, std::int32_t block);
  void close(Path& path);

  // Evicts until `count` blocks are free; evicts nothing and returns false where that is out of reach.
  bool make_room(std::int64_t count);

  std::int64_t num_idle() const { return num_idle_; }           // blocks that could be evicted
  std::int64_t num_evicted() const { return num_evicted_; }     // blocks, so far
  std::int64_t num_nodes() const;                               // blocks of text that are known, resident or not
  std::int64_t num_keys() const { return std::ssize(roots_); }  // under which anything is known or held

 private:
  static constexpr std::int32_t kNoBlock = -1;

  struct Node {
    std::array<std::int64_t, kBlockSize> tokens{};
    std::int32_t parent = kNoNode;  // none: a root
    std::int32_t block = kNoBlock;  // none: a root, or evicted
    std::int64_t num_holders = 0;   // paths that hold the block; of a root: open paths
    std::int64_t num_children = 0;
    std::int32_t next_in_bucket = kNoNode;
    std::int32_t older = kNoNode, newer = kNoNode;    // neighbours while idle
    std::map<PrefixKey, std::int32_t>::iterator key;  // of a root
  };

  Node& at(std::int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  std::int64_t first_needed_block(std::int64_t num_blocks) const;
  std::size_t bucket_index(std::int32_t parent, std::span<const std::int64_t> tokens) const;
  std::int32_t find_child(std::int32_t parent, std::span<const std::int64_t> tokens) const;
  std::int32_t add_child(std::int32_t parent, std::span<const std::int64_t> tokens);
  std::int32_t new_node();
  std::int32_t root_of(const PrefixKey& key);
  void hold(std::int32_t node);
  void let_go(std::int32_t node);
  void unlink_idle(std::int32_t node);
  void evict_oldest();
  // Removes the node, then those above it, while nothing needs them.
  void prune(std::int32_t node);

  BlockAllocator& allocator_;
  std::int64_t sliding_window_;
  std::uint64_t hash_seed_;  // drawn, so that no client can choose texts that collide
  std::vector<std::int32_t> buckets_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> free_nodes_;
  std::map<PrefixKey, std::int32_t> roots_;
  std::int32_t oldest_ = kNoNode, newest_ = kNoNode;  // of the idle ones
  std::int64_t num_idle_ = 0;
  std::int64_t num_evicted_ = 0;
};

}  // namespace shoal
