#include "weights/row_order.h"

#include <algorithm>

#include "core/check.h"

namespace shoal {

std::vector<RowRange> identity_rows(std::int64_t rows) { return {{.begin = 0, .count = rows}}; }

std::vector<RowRange> grouped_qkv_rows(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
  CHECK_GT(kv_heads, 0);
  CHECK_EQ(heads % kv_heads, 0);
  const std::int64_t query_rows = heads / kv_heads * head_dim;
  const std::int64_t group_rows = query_rows + 2 * head_dim;
  std::vector<RowRange> ranges;
  ranges.reserve(static_cast<std::size_t>(3 * kv_heads));
  for (std::int64_t group = 0; group < kv_heads; ++group) {
    ranges.push_back({.begin = group * group_rows, .count = query_rows});
  }
  for (std::int64_t part = 0; part < 2; ++part) {  // keys, then values
    for (std::int64_t group = 0; group < kv_heads; ++group) {
      ranges.push_back({.begin = group * group_rows + query_rows + part * head_dim, .count = head_dim});
    }
  }
  return ranges;
}

std::vector<RowRange> interleaved_qkv_rows(std::int64_t heads, std::int64_t head_dim) {
  return grouped_qkv_rows(heads, heads, head_dim);
}

std::int64_t count_rows(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  return rows;
}

std::vector<RowRange> slice_rows(std::span<const RowRange> ranges, std::int64_t begin, std::int64_t count) {
  CHECK_GE(begin, 0);
  CHECK_GE(count, 0);
  CHECK_LE(begin + count, count_rows(ranges));
  std::vector<RowRange> slice;
  std::int64_t range_begin = 0;  // in destination rows
  for (const RowRange& range : ranges) {
    const std::int64_t first = std::max(begin, range_begin);
    const std::int64_t last = std::min(begin + count, range_begin + range.count);
    if (first < last) slice.push_back({.begin = range.begin + first - range_begin, .count = last - first});
    range_begin += range.count;
  }
  return slice;
}

std::vector<RowRange> shard_rows(std::span<const RowRange> ranges, std::int64_t rank, std::int64_t world) {
  const std::int64_t rows = count_rows(ranges);
  CHECK_GE(rank, 0);
  CHECK_LT(rank, world);
  CHECK_EQ(rows % world, 0);
  return slice_rows(ranges, rank * (rows / world), rows / world);
}

std::vector<RowRange> merge_rows(std::span<const RowRange> ranges) {
  std::vector<RowRange> merged;
  for (const RowRange& range : ranges) {
    if (range.count == 0) continue;
    if (!merged.empty() && merged.back().begin + merged.back().count == range.begin) {
      merged.back().count += range.count;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace shoal
