#include "cache/block_table.h"

#include <utility>

#include "core/block_size.h"
#include "core/check.h"

namespace shoal {

BlockTable::BlockTable(BlockTable&& other) noexcept : allocator_(other.allocator_), prefixes_(other.prefixes_) {
  swap(other);
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    clear();
    swap(other);
  }
  return *this;
}

void BlockTable::swap(BlockTable& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(prefixes_, other.prefixes_);
  std::swap(path_, other.path_);
  block_ids_.swap(other.block_ids_);
}

void BlockTable::start(const PrefixKey& key, const PrefixTree::Match& match) {
  CHECK(prefixes_ != nullptr);
  CHECK(block_ids_.empty());
  CHECK(path_.root == PrefixTree::kNoNode);
  path_ = prefixes_->open(key, match, block_ids_);
}

void BlockTable::share(std::span<const std::int64_t> computed_tokens) {
  if (path_.root == PrefixTree::kNoNode) return;
  while ((path_.num_blocks + 1) * kBlockSize <= std::ssize(computed_tokens)) {
    std::int32_t& own = block_ids_[static_cast<std::size_t>(path_.num_blocks)];
    const auto begin = static_cast<std::size_t>(path_.num_blocks * kBlockSize);
    const std::int32_t held = prefixes_->extend(path_, computed_tokens.subspan(begin, kBlockSize), own);
    if (held != own) allocator_->free({&own, 1});
    own = held;
  }
}

bool BlockTable::grow_to_tokens(std::int64_t num_tokens) {
  const std::int64_t missing = blocks_for_tokens(num_tokens) - num_blocks();
  if (missing <= 0) return true;
  if (prefixes_ != nullptr && !prefixes_->make_room(missing)) return false;
  return allocator_->allocate(missing, block_ids_);
}

void BlockTable::reserve_tokens(std::int64_t num_tokens) {
  block_ids_.reserve(static_cast<std::size_t>(blocks_for_tokens(num_tokens)));
}

void BlockTable::clear() {
  allocator_->free(std::span<const std::int32_t>(block_ids_).subspan(static_cast<std::size_t>(path_.num_blocks)));
  if (prefixes_ != nullptr) prefixes_->close(path_);
  block_ids_.clear();
}

}  // namespace shoal
