#include "weights/row_order.h"

#include <gtest/gtest.h>

#include <random>

#include "weights/row_blocks.h"

namespace shoal {
namespace {

std::vector<std::int64_t> sources(std::span<const RowRange> ranges) {
  std::vector<std::int64_t> rows;
  for (const RowRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) rows.push_back(range.begin + i);
  }
  return rows;
}

TEST(RowOrder, GroupedRowsBecomeQueriesKeysValues) {
  // 4 heads on 2 KV heads of 2 rows. File: q0 q0 q1 q1 k0 k0 v0 v0 | q2 q2 q3 q3 k1 k1 v1 v1.
  EXPECT_EQ(sources(grouped_qkv_rows(4, 2, 2)),
            (std::vector<std::int64_t>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}));
}

TEST(RowOrder, OneGroupIsTheIdentity) { EXPECT_EQ(merge_rows(grouped_qkv_rows(71, 1, 64)), identity_rows(73 * 64)); }

TEST(RowOrder, InterleavedRowsBecomeQueriesKeysValues) {
  // 3 heads of 2 rows. File: q0 q0 k0 k0 v0 v0 | q1 q1 k1 k1 v1 v1 | q2 q2 k2 k2 v2 v2.
  EXPECT_EQ(sources(interleaved_qkv_rows(3, 2)),
            (std::vector<std::int64_t>{0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15, 4, 5, 10, 11, 16, 17}));
}

TEST(RowOrder, SlicesAndShardsFollowTheDestination) {
  const std::vector<RowRange> ranges = grouped_qkv_rows(4, 2, 2);
  const std::vector<std::int64_t> all = sources(ranges);
  for (std::int64_t begin = 0; begin <= 16; ++begin) {
    for (std::int64_t count = 0; begin + count <= 16; ++count) {
      const std::vector<std::int64_t> expected(all.begin() + begin, all.begin() + begin + count);
      EXPECT_EQ(sources(slice_rows(ranges, begin, count)), expected);
    }
  }
  EXPECT_EQ(sources(shard_rows(ranges, 1, 4)), (std::vector<std::int64_t>{8, 9, 10, 11}));
  EXPECT_DEATH((void)shard_rows(ranges, 0, 3), "check failed");
  EXPECT_DEATH((void)slice_rows(ranges, 9, 8), "check failed");
}

TEST(RowOrder, MergeJoinsNeighboursAndDropsEmptyRanges) {
  const std::vector<RowRange> ranges{{0, 3}, {3, 0}, {3, 4}, {9, 0}, {8, 1}, {9, 2}};
  EXPECT_EQ(merge_rows(ranges), (std::vector<RowRange>{{0, 7}, {8, 3}}));
  EXPECT_EQ(count_rows(ranges), 10);
}

TEST(RowBlocks, CoverEveryRowInOrderAtPanelBoundaries) {
  std::mt19937 random(3);
  const auto below = [&random](std::int64_t bound) { return static_cast<std::int64_t>(random()) % bound; };
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<RowRange> ranges;
    for (std::int64_t i = below(9); i > 0; --i) {
      ranges.push_back({.begin = below(100), .count = below(trial % 2 == 0 ? 7 : 90)});
    }
    std::vector<std::int64_t> seen;
    const std::int64_t total = count_rows(ranges);
    for_each_block(ranges, 32, [&](std::int64_t row_begin, std::span<const RowRange> pieces) {
      const std::int64_t num_rows = count_rows(pieces);
      EXPECT_EQ(row_begin, std::ssize(seen));
      EXPECT_EQ(row_begin % kRowsPerPanel, 0);
      EXPECT_GT(num_rows, 0);
      EXPECT_LE(num_rows, 32);
      EXPECT_TRUE(num_rows % kRowsPerPanel == 0 || row_begin + num_rows == total);
      EXPECT_TRUE(pieces.size() == 1 || num_rows <= kRowsPerPanel);
      for (const std::int64_t row : sources(pieces)) seen.push_back(row);
    });
    EXPECT_EQ(seen, sources(ranges));
  }
}

TEST(RowBlocks, NoRowsGiveNoBlock) {
  const std::vector<RowRange> empty_ranges{{5, 0}, {2, 0}};
  for_each_block(empty_ranges, 16, [](std::int64_t, std::span<const RowRange>) { FAIL(); });
  for_each_block({}, 16, [](std::int64_t, std::span<const RowRange>) { FAIL(); });
}

}  // namespace
}  // namespace shoal
