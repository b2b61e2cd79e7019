// Cutting a list of row ranges into blocks, and moving the rows of one block. Used by WeightSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "weights/row_order.h"

namespace shoal {

// Blocks start and end at destination rows that this divides, the last one aside: CPU weights interleave 16 rows.
inline constexpr std::int64_t kRowsPerPanel = 16;

// Calls `take` for consecutive blocks of at most `max_rows` destination rows (a multiple of kRowsPerPanel) with the
// source ranges of the block. A block has one range wherever a range has kRowsPerPanel rows left, so that it can be
// handed out without a copy.
void for_each_block(std::span<const RowRange> ranges, std::int64_t max_rows,
                    const std::function<void(std::int64_t row_begin, std::span<const RowRange> pieces)>& take);

// A row-major matrix of 2- or 4-byte elements at any address.
struct SourceMatrix {
  const std::byte* data = nullptr;
  std::int64_t row_elements = 0;
  std::int64_t element_bytes = 0;
};

// rows_out [rows.count, columns.count] = source[rows, columns].
void copy_rows(const SourceMatrix& source, const RowRange& rows, const RowRange& columns, std::byte* rows_out);

// rows_out [rows.count, columns.count] = transposed source: rows count along the source's columns. `rows_out` is
// aligned for the element.
void transpose_rows(const SourceMatrix& source, const RowRange& rows, const RowRange& columns, std::byte* rows_out);

}  // namespace shoal
