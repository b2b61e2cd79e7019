#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "cache/block_table.h"
#include "cache/kv_cache.h"
#include "core/block_size.h"

namespace shoal {
namespace {

using BlockIds = std::vector<std::int32_t>;

TEST(BlockAllocator, AscendingHandsOutFromZeroAndReusesTheLastFreed) {
  BlockAllocator allocator(5);
  BlockIds first, second, third;
  ASSERT_TRUE(allocator.allocate(3, first));
  EXPECT_EQ(first, (BlockIds{0, 1, 2}));
  ASSERT_TRUE(allocator.allocate(1, second));
  EXPECT_EQ(second, (BlockIds{3}));
  allocator.free(first);
  ASSERT_TRUE(allocator.allocate(4, third));
  EXPECT_EQ(third, (BlockIds{0, 1, 2, 4}));
  EXPECT_EQ(allocator.num_free(), 0);
  EXPECT_EQ(allocator.num_used(), 5);
}

TEST(BlockAllocator, TakesNothingWhenTooFewAreFree) {
  BlockAllocator allocator(2);
  BlockIds ids{7};
  EXPECT_FALSE(allocator.allocate(3, ids));
  EXPECT_EQ(ids, (BlockIds{7}));
  EXPECT_EQ(allocator.num_free(), 2);
  EXPECT_TRUE(allocator.allocate(0, ids));
  EXPECT_TRUE(allocator.allocate(2, ids));
  EXPECT_FALSE(allocator.allocate(1, ids));
  EXPECT_TRUE(allocator.allocate(0, ids));
}

TEST(BlockAllocator, FreeingWhatIsNotInUseStops) {
  BlockAllocator allocator(3);
  BlockIds ids;
  ASSERT_TRUE(allocator.allocate(2, ids));
  allocator.free(ids);
  EXPECT_DEATH(allocator.free(ids), "check failed");
  EXPECT_DEATH(allocator.free(BlockIds{2}), "check failed") << "never handed out";
  EXPECT_DEATH(allocator.free(BlockIds{3}), "check failed") << "no such block";
  EXPECT_DEATH(allocator.free(BlockIds{-1}), "check failed");
}

TEST(BlockAllocator, ShuffledGivesEachBlockOnceInAnOrderOfItsSeed) {
  const auto order_of = [](std::uint64_t seed) {
    BlockAllocator allocator(64, BlockOrder::kShuffled, seed);
    BlockIds ids;
    EXPECT_TRUE(allocator.allocate(64, ids));
    return ids;
  };
  const BlockIds ids = order_of(1);
  EXPECT_EQ(std::set<std::int32_t>(ids.begin(), ids.end()).size(), 64U);
  EXPECT_FALSE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(ids, order_of(1));
  EXPECT_NE(ids, order_of(2));
}

TEST(BlockAllocator, ShuffledListsEachFreedBlockOnce) {
  BlockAllocator allocator(4, BlockOrder::kShuffled, 3);
  BlockIds ids, poison;
  allocator.take_poison(poison);
  EXPECT_TRUE(poison.empty()) << "a fresh block holds nothing to hide";
  for (int round = 0; round < 3; ++round) {  // freed three times between two steps
    ids.clear();
    ASSERT_TRUE(allocator.allocate(4, ids));
    allocator.free(ids);
  }
  allocator.take_poison(poison);
  std::sort(poison.begin(), poison.end());
  EXPECT_EQ(poison, (BlockIds{0, 1, 2, 3}));
  poison.clear();
  allocator.take_poison(poison);
  EXPECT_TRUE(poison.empty());
}

TEST(BlockAllocator, AscendingListsNoPoison) {
  BlockAllocator allocator(4);
  BlockIds ids, poison;
  ASSERT_TRUE(allocator.allocate(4, ids));
  allocator.free(ids);
  allocator.take_poison(poison);
  EXPECT_TRUE(poison.empty());
}

TEST(BlockAllocator, RandomUseKeepsEveryBlockWithOneOwner) {
  for (const BlockOrder order : {BlockOrder::kAscending, BlockOrder::kShuffled}) {
    BlockAllocator allocator(37, order, 5);
    std::mt19937_64 random(11);
    std::vector<BlockTable> tables;
    for (int i = 0; i < 9; ++i) tables.emplace_back(allocator);
    for (int round = 0; round < 5000; ++round) {
      BlockTable& table = tables[random() % tables.size()];
      const auto before = table.num_blocks();
      if (random() % 3 == 0) {
        table.clear();
      } else {
        const auto tokens = static_cast<std::int64_t>(random() % 200);
        const auto free_before = allocator.num_free();
        const bool grown = table.grow_to_tokens(tokens);
        EXPECT_EQ(grown, blocks_for_tokens(tokens) - before <= free_before);
        EXPECT_EQ(table.num_blocks(), grown ? std::max(before, blocks_for_tokens(tokens)) : before);
      }
      std::set<std::int32_t> owned;
      std::int64_t total = 0;
      for (const BlockTable& each : tables) {
        owned.insert(each.block_ids().begin(), each.block_ids().end());
        total += each.num_blocks();
      }
      ASSERT_EQ(static_cast<std::int64_t>(owned.size()), total);
      ASSERT_EQ(allocator.num_used(), total);
    }
    tables.clear();
    EXPECT_EQ(allocator.num_used(), 0);
  }
}

TEST(BlockTable, GrowsAtExactMultiplesOfABlock) {
  BlockAllocator allocator(3);
  BlockTable table(allocator);
  for (const auto& [tokens, blocks] :
       {std::pair<int, int>{0, 0}, {1, 1}, {15, 1}, {16, 1}, {17, 2}, {32, 2}, {33, 3}, {48, 3}}) {
    ASSERT_TRUE(table.grow_to_tokens(tokens));
    EXPECT_EQ(table.num_blocks(), blocks) << tokens;
  }
  EXPECT_FALSE(table.grow_to_tokens(49));
  EXPECT_EQ(table.num_blocks(), 3);
}

TEST(BlockTable, MovingHandsTheBlocksOnOnce) {
  BlockAllocator allocator(4);
  {
    BlockTable first(allocator);
    ASSERT_TRUE(first.grow_to_tokens(20));
    BlockTable second(std::move(first));
    EXPECT_EQ(second.num_blocks(), 2);
    BlockTable third(allocator);
    ASSERT_TRUE(third.grow_to_tokens(16));
    third = std::move(second);
    EXPECT_EQ(third.num_blocks(), 2);
    EXPECT_EQ(allocator.num_used(), 2) << "what it held before went back";
  }
  EXPECT_EQ(allocator.num_used(), 0);
}

TEST(KvCache, LayersAndBlocksDoNotOverlap) {
  const KvCacheShape shape{.num_layers = 3, .kv_heads = 1, .head_dim = 5, .dtype = DType::kInt8};
  EXPECT_EQ(KvCache::bytes_per_block(shape), 2 * 3 * 16 * 5);
  // Odd sizes: 7 blocks of 16 x 1 x 5 elements end off a 64-byte line.
  const KvCacheShape odd{.num_layers = 3, .kv_heads = 1, .head_dim = 5, .dtype = DType::kBFloat16};
  const KvCache cache(odd, 7, host_allocator());
  EXPECT_GE(cache.num_bytes(), 7 * KvCache::bytes_per_block(odd));
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    for (const Tensor& part : {cache.key(layer), cache.value(layer)}) {
      EXPECT_EQ(describe_shape(part.shape()), "[7, 16, 1, 5]");
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.raw()) % 64, 0U);
      std::memset(part.raw(), static_cast<int>(layer), static_cast<std::size_t>(part.num_bytes()));
    }
    std::memset(cache.value(layer).raw(), static_cast<int>(layer) + 100,
                static_cast<std::size_t>(cache.value(layer).num_bytes()));
  }
  const auto all_bytes_are = [](const Tensor& part, int value) {
    const auto* bytes = static_cast<const std::uint8_t*>(part.raw());
    return std::all_of(bytes, bytes + part.num_bytes(), [value](std::uint8_t byte) { return byte == value; });
  };
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(all_bytes_are(cache.key(layer), layer));
    EXPECT_TRUE(all_bytes_are(cache.value(layer), layer + 100));
  }
  EXPECT_DEATH((void)cache.key(3), "check failed");
}

}  // namespace
}  // namespace shoal
