// RowRange and the row orders of fused query-key-value weights: which source rows, in which order, make Q | K | V.
// Used by layers/ for base weights and by lora/ for the rows of a fused B.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal {

// Source rows [begin, begin + count). A list of them names the source of each destination row, in order.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  bool operator==(const RowRange&) const = default;
};

// The rows as they are.
std::vector<RowRange> identity_rows(std::int64_t rows);

// Source: one group a KV head, (heads / kv_heads queries, key, value) of head_dim rows each, as in Falcon's new
// decoder architecture. Destination: Q [heads] | K [kv_heads] | V [kv_heads]. kv_heads must divide heads.
std::vector<RowRange> grouped_qkv_rows(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim);

// Source: (query, key, value) head by head, as in Falcon without multi-query and GPTBigCode with multi_query false.
// Destination: Q [heads] | K [heads] | V [heads].
std::vector<RowRange> interleaved_qkv_rows(std::int64_t heads, std::int64_t head_dim);

std::int64_t count_rows(std::span<const RowRange> ranges);

// The source of destination rows [begin, begin + count) of `ranges`.
std::vector<RowRange> slice_rows(std::span<const RowRange> ranges, std::int64_t begin, std::int64_t count);

// The rank's equal share of the destination rows; world must divide their number.
std::vector<RowRange> shard_rows(std::span<const RowRange> ranges, std::int64_t rank, std::int64_t world);

// The same rows with neighbours joined and empty ranges dropped.
std::vector<RowRange> merge_rows(std::span<const RowRange> ranges);

}  // namespace shoal
