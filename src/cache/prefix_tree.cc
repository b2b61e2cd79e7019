#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "core/check.h"

namespace shoal {
namespace {

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  const std::uint64_t x = (state ^ value) * 0x9fb21c651e98df25U;
  return x ^ (x >> 32);
}

std::uint64_t draw_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::span<const std::int64_t> block_of(std::span<const std::int64_t> tokens, std::int64_t index) {
  return tokens.subspan(static_cast<std::size_t>(index * kBlockSize), static_cast<std::size_t>(kBlockSize));
}

}  // namespace

PrefixTree::PrefixTree(BlockAllocator& allocator, PrefixTreeOptions options)
    : allocator_(allocator), sliding_window_(options.sliding_window), hash_seed_(draw_seed()) {
  const std::int64_t wanted = options.num_buckets > 0 ? options.num_buckets : 2 * allocator.num_blocks();
  buckets_.assign(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(wanted, 1))), kNoNode);
  // So many unless a window leaves nodes without a block: a step that completes blocks allocates nothing.
  nodes_.reserve(static_cast<std::size_t>(allocator.num_blocks()));
  free_nodes_.reserve(static_cast<std::size_t>(allocator.num_blocks()));
}

std::int64_t PrefixTree::num_nodes() const { return std::ssize(nodes_) - std::ssize(free_nodes_) - num_keys(); }

// The query behind `num_blocks` full blocks sees no token before this block.
std::int64_t PrefixTree::first_needed_block(std::int64_t num_blocks) const {
  if (sliding_window_ == 0) return 0;
  return std::max<std::int64_t>(0, num_blocks * kBlockSize - sliding_window_) / kBlockSize;
}

PrefixTree::Match PrefixTree::find(const PrefixKey& key, std::span<const std::int64_t> tokens,
                                   std::int64_t max_blocks) const {
  Match best;
  const auto root = roots_.find(key);
  if (root == roots_.end()) return best;
  const std::int64_t last = std::min(max_blocks, std::ssize(tokens) / kBlockSize);
  std::int32_t node = root->second;
  std::int64_t resident_from = 0;  // the blocks [resident_from, depth) are all there
  for (std::int64_t depth = 1; depth <= last; ++depth) {
    node = find_child(node, block_of(tokens, depth - 1));
    if (node == kNoNode) break;
    if (at(node).block == kNoBlock) resident_from = depth;
    const std::int64_t first = first_needed_block(depth);
    if (resident_from <= first && first < depth) best = {.node = node, .num_blocks = depth, .first_block = first};
  }
  node = best.node;
  for (std::int64_t i = best.first_block; i < best.num_blocks; ++i, node = at(node).parent) {
    if (at(node).num_holders == 0) ++best.num_idle;
  }
  return best;
}

PrefixTree::Path PrefixTree::open(const PrefixKey& key, const Match& match, std::vector<std::int32_t>& block_ids) {
  Path path;
  path.root = path.node = root_of(key);
  ++at(path.root).num_holders;
  if (match.num_blocks == 0) return path;
  path.node = match.node;
  path.num_blocks = match.num_blocks;
  path.first_block = match.first_block;
  const std::size_t begin = block_ids.size();
  block_ids.resize(begin + static_cast<std::size_t>(match.num_blocks), kNoBlock);
  std::int32_t node = match.node;
  for (std::int64_t i = match.num_blocks; i-- > match.first_block; node = at(node).parent) {
    hold(node);
    block_ids[begin + static_cast<std::size_t>(i)] = at(node).block;
  }
  return path;
}

std::int32_t PrefixTree::extend(Path& path, std::span<const std::int64_t> tokens, std::int32_t block) {
  CHECK(path.root != kNoNode);
  CHECK_EQ(std::ssize(tokens), kBlockSize);
  std::int32_t node = find_child(path.node, tokens);
  if (node == kNoNode) node = add_child(path.node, tokens);
  if (at(node).block == kNoBlock) {
    at(node).block = block;
    ++at(node).num_holders;
  } else {
    hold(node);
  }
  path.node = node;
  ++path.num_blocks;
  return at(node).block;
}

void PrefixTree::close(Path& path) {
  if (path.root == kNoNode) return;
  std::int32_t node = path.node;
  for (std::int64_t i = path.num_blocks; i-- > path.first_block;) {
    const std::int32_t parent = at(node).parent;
    let_go(node);
    node = parent;
  }
  --at(path.root).num_holders;
  prune(path.root);
  path = Path();
}

bool PrefixTree::make_room(std::int64_t count) {
  if (allocator_.num_free() + num_idle_ < count) return false;
  while (allocator_.num_free() < count) evict_oldest();
  return true;
}

std::size_t PrefixTree::bucket_index(std::int32_t parent, std::span<const std::int64_t> tokens) const {
  std::uint64_t hash = mix(hash_seed_, static_cast<std::uint64_t>(parent));
  for (const std::int64_t token : tokens) hash = mix(hash, static_cast<std::uint64_t>(token));
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

std::int32_t PrefixTree::find_child(std::int32_t parent, std::span<const std::int64_t> tokens) const {
  std::int32_t node = buckets_[bucket_index(parent, tokens)];
  while (node != kNoNode && (at(node).parent != parent || !std::ranges::equal(at(node).tokens, tokens))) {
    node = at(node).next_in_bucket;
  }
  return node;
}

std::int32_t PrefixTree::add_child(std::int32_t parent, std::span<const std::int64_t> tokens) {
  const std::int32_t node = new_node();
  std::ranges::copy(tokens, at(node).tokens.begin());
  at(node).parent = parent;
  ++at(parent).num_children;
  at(node).next_in_bucket = std::exchange(buckets_[bucket_index(parent, tokens)], node);
  return node;
}

std::int32_t PrefixTree::new_node() {
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
    return static_cast<std::int32_t>(nodes_.size()) - 1;
  }
  const std::int32_t node = free_nodes_.back();
  free_nodes_.pop_back();
  at(node) = Node();
  return node;
}

std::int32_t PrefixTree::root_of(const PrefixKey& key) {
  const auto [place, is_new] = roots_.try_emplace(key, kNoNode);
  if (is_new) {
    place->second = new_node();
    at(place->second).key = place;
  }
  return place->second;
}

void PrefixTree::hold(std::int32_t node) {
  if (at(node).num_holders++ == 0) unlink_idle(node);
}

void PrefixTree::let_go(std::int32_t node) {
  Node& let_go_of = at(node);
  CHECK_GT(let_go_of.num_holders, 0);
  if (--let_go_of.num_holders > 0) return;
  let_go_of.older = newest_;
  (newest_ == kNoNode ? oldest_ : at(newest_).newer) = node;
  newest_ = node;
  ++num_idle_;
}

void PrefixTree::unlink_idle(std::int32_t node) {
  Node& idle = at(node);
  (idle.older == kNoNode ? oldest_ : at(idle.older).newer) = idle.newer;
  (idle.newer == kNoNode ? newest_ : at(idle.newer).older) = idle.older;
  idle.older = idle.newer = kNoNode;
  --num_idle_;
}

void PrefixTree::evict_oldest() {
  const std::int32_t node = oldest_;
  CHECK(node != kNoNode);
  unlink_idle(node);
  const std::int32_t block = std::exchange(at(node).block, kNoBlock);
  allocator_.free({&block, 1});
  ++num_evicted_;
  prune(node);
}

void PrefixTree::prune(std::int32_t node) {
  while (node != kNoNode) {
    const Node& unused = at(node);
    if (unused.block != kNoBlock || unused.num_holders > 0 || unused.num_children > 0) return;
    const std::int32_t parent = unused.parent;
    if (parent == kNoNode) {
      roots_.erase(unused.key);
    } else {
      --at(parent).num_children;
      std::int32_t* link = &buckets_[bucket_index(parent, unused.tokens)];
      while (*link != node) link = &at(*link).next_in_bucket;
      *link = unused.next_in_bucket;
    }
    free_nodes_.push_back(node);
    node = parent;
  }
}

}  // namespace shoal
