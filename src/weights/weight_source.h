// WeightSource: the one road from a checkpoint to the layers. It checks names, dtypes and shapes, hands matrices out
// in blocks of rows, and knows which tensors nobody asked for. Used by layers/, models/ and the engine's loader.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "core/tensor.h"
#include "weights/checkpoint.h"
#include "weights/dummy_values.h"
#include "weights/row_order.h"

namespace shoal {

// How a matrix lies in its file: [out, in] as torch's Linear, or [in, out] as Conv1D.
enum class Orientation : std::uint8_t { kOutIn, kInOut };

// What `has` answers for random weights, which hold any tensor that is read.
enum class DummyHas : std::uint8_t { kNo, kYes };

// A matrix, or a part of one, as a layer wants it.
struct MatrixRequest {
  std::string name = {};
  std::int64_t rows = 0;  // out features of the whole logical matrix [rows, cols]
  std::int64_t cols = 0;  // in features of the whole logical matrix
  Orientation orientation = Orientation::kOutIn;
  std::vector<RowRange> row_ranges = {};  // source rows in destination order; empty: all
  std::int64_t column_begin = 0;          // a row-parallel slice of the in features
  std::int64_t column_count = 0;          // 0: all
};

class WeightSource {
 public:
  // Gets the next destination rows: [n, columns] contiguous, in the file's dtype, valid during the call only.
  using RowSink = std::function<void(std::int64_t row_begin, const Tensor& host_rows)>;
  using BytesRead = std::function<void(std::int64_t num_bytes)>;

  explicit WeightSource(Checkpoint checkpoint);
  // Random weights of any name and shape: see DummyValues. `dtype` is float32, bfloat16 or float16.
  static WeightSource dummy(DType dtype);

  // Called after each block or vector with its bytes, for a ProgressReporter.
  void set_bytes_read(BytesRead bytes_read) { bytes_read_ = std::move(bytes_read); }

  bool is_dummy() const { return !checkpoint_.has_value(); }
  bool has(std::string_view name, DummyHas in_dummy = DummyHas::kNo) const;
  // The first of these names that the checkpoint has (the first of all for random weights); StartError if none.
  std::string first_of(std::initializer_list<std::string_view> names) const;
  // The dtype in which read_rows hands out `name`; StartError when it is not there.
  DType dtype_of(std::string_view name) const;
  // Null for random weights.
  const Checkpoint* checkpoint() const { return is_dummy() ? nullptr : &*checkpoint_; }
  // Of all tensors in the checkpoint; 0 for random weights.
  std::int64_t total_bytes() const { return is_dummy() ? 0 : checkpoint_->total_bytes(); }

  // Hands out a matrix in blocks of at most about 8 MiB. Every block but the last starts and ends at a destination
  // row that 16 divides. The file's shape must be [rows, cols] ([cols, rows] for kInOut) and its dtype float32,
  // bfloat16 or float16, else StartError. Mapped pages are released behind the reading.
  void read_rows(const MatrixRequest& request, const RowSink& sink);
  // Counts a matrix whose random weights were made elsewhere, as reading it would.
  void count_made(const MatrixRequest& request) const;
  // A vector of `count` elements as floats, or the ranges of it in that order.
  std::vector<float> read_vector(std::string_view name, std::int64_t count, std::span<const RowRange> ranges = {});
  // A small tensor of this very shape as floats, row-major: per-head norms [heads, head_dim].
  std::vector<float> read_floats(std::string_view name, std::initializer_list<std::int64_t> shape);

  // Whether two tensors agree in dtype, shape and every byte. Both must exist. Random weights: always.
  bool equal_tensors(std::string_view first, std::string_view second) const;
  // Counts a tensor as read: the unused half of a tied pair, a known name without meaning here.
  void mark_used(std::string_view name);
  // Throws StartError that lists the tensors which nobody read, except harmless buffers (rotary frequencies, causal
  // masks) and the scales of a quantized cache, which are skipped with one log line.
  void finish() const;

 private:
  WeightSource(std::optional<Checkpoint> checkpoint, DType dummy_dtype);

  const TensorInfo& checked_info(std::string_view name, std::span<const std::int64_t> shape);
  void read_file_rows(const MatrixRequest& request, const RowSink& sink);
  void read_dummy_rows(const MatrixRequest& request, const RowSink& sink);
  // Host scratch of at least `num_bytes`, reused from block to block.
  std::byte* staging(std::int64_t num_bytes);
  void report(std::int64_t num_bytes) const;

  std::optional<Checkpoint> checkpoint_;
  DummyValues dummy_values_;
  BytesRead bytes_read_;
  std::set<std::string, std::less<>> used_;
  Buffer staging_;
};

}  // namespace shoal
