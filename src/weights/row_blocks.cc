#include "weights/row_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/check.h"

namespace shoal {
namespace {

// Through a tile of its own: rows of matrices lie powers of two apart, where direct writes would evict each other.
template <typename Bits>
void transpose(const SourceMatrix& source, const RowRange& rows, const RowRange& columns, Bits* rows_out) {
  constexpr std::int64_t kTile = 32;
  std::array<Bits, kTile * kTile> tile{};  // [columns, rows]
  for (std::int64_t first_column = 0; first_column < columns.count; first_column += kTile) {
    const std::int64_t num_columns = std::min(kTile, columns.count - first_column);
    for (std::int64_t first_row = 0; first_row < rows.count; first_row += kTile) {
      const std::int64_t num_rows = std::min(kTile, rows.count - first_row);
      for (std::int64_t column = 0; column < num_columns; ++column) {
        const std::int64_t source_row = columns.begin + first_column + column;
        const std::int64_t element = source_row * source.row_elements + rows.begin + first_row;
        std::memcpy(&tile[static_cast<std::size_t>(column * kTile)], source.data + element * source.element_bytes,
                    static_cast<std::size_t>(num_rows) * sizeof(Bits));
      }
      for (std::int64_t row = 0; row < num_rows; ++row) {
        Bits* row_out = rows_out + (first_row + row) * columns.count + first_column;
        for (std::int64_t column = 0; column < num_columns; ++column) {
          row_out[column] = tile[static_cast<std::size_t>(column * kTile + row)];
        }
      }
    }
  }
}

}  // namespace

void for_each_block(std::span<const RowRange> ranges, std::int64_t max_rows,
                    const std::function<void(std::int64_t row_begin, std::span<const RowRange> pieces)>& take) {
  CHECK_GE(max_rows, kRowsPerPanel);
  CHECK_EQ(max_rows % kRowsPerPanel, 0);
  const std::vector<RowRange> merged = merge_rows(ranges);
  std::vector<RowRange> pieces;
  std::int64_t row_begin = 0;
  std::size_t index = 0;
  std::int64_t used = 0;  // rows of merged[index] that are already out
  while (index < merged.size()) {
    const std::int64_t left = merged[index].count - used;
    const bool is_last = index + 1 == merged.size();
    // Whole panels of this range if there is one, else one panel gathered over the following ranges.
    std::int64_t wanted = std::min(left, max_rows);
    if (!is_last || wanted < left) wanted -= wanted % kRowsPerPanel;
    if (wanted == 0) wanted = kRowsPerPanel;
    pieces.clear();
    std::int64_t taken = 0;
    while (taken < wanted && index < merged.size()) {
      const std::int64_t count = std::min(wanted - taken, merged[index].count - used);
      pieces.push_back({.begin = merged[index].begin + used, .count = count});
      taken += count;
      used += count;
      if (used == merged[index].count) {
        ++index;
        used = 0;
      }
    }
    take(row_begin, pieces);
    row_begin += taken;
  }
}

void copy_rows(const SourceMatrix& source, const RowRange& rows, const RowRange& columns, std::byte* rows_out) {
  const std::int64_t row_bytes = columns.count * source.element_bytes;
  const std::byte* first = source.data + (rows.begin * source.row_elements + columns.begin) * source.element_bytes;
  if (columns.count == source.row_elements) {
    std::memcpy(rows_out, first, static_cast<std::size_t>(rows.count * row_bytes));
    return;
  }
  for (std::int64_t row = 0; row < rows.count; ++row) {
    std::memcpy(rows_out + row * row_bytes, first + row * source.row_elements * source.element_bytes,
                static_cast<std::size_t>(row_bytes));
  }
}

void transpose_rows(const SourceMatrix& source, const RowRange& rows, const RowRange& columns, std::byte* rows_out) {
  CHECK(source.element_bytes == 2 || source.element_bytes == 4);
  if (source.element_bytes == 2) {
    transpose(source, rows, columns, reinterpret_cast<std::uint16_t*>(rows_out));
  } else {
    transpose(source, rows, columns, reinterpret_cast<std::uint32_t*>(rows_out));
  }
}

}  // namespace shoal
