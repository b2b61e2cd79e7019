#include "weights/weight_source.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/result.h"
#include "weights/row_blocks.h"
#include "weights/start_error.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

constexpr std::int64_t kBlockBytes = 8 << 20;
// Smaller pieces are released with the whole tensor: a system call each would cost more than it frees.
constexpr std::int64_t kMinReleaseBytes = 64 << 10;
constexpr std::size_t kMaxListedNames = 8;
constexpr std::string_view kReadableDTypes = "float32, bfloat16 or float16";

std::int64_t rows_per_block(std::int64_t row_bytes) {
  const std::int64_t rows = kBlockBytes / std::max<std::int64_t>(row_bytes, 1);
  return std::max(kRowsPerPanel, rows - rows % kRowsPerPanel);
}

void check_request(const MatrixRequest& request) {
  CHECK_GE(request.column_begin, 0);
  CHECK_GE(request.column_count, 0);
  CHECK_LE(request.column_begin + request.column_count, request.cols);
  for (const RowRange& range : request.row_ranges) {
    CHECK_GE(range.begin, 0);
    CHECK_GE(range.count, 0);
    CHECK_LE(range.begin + range.count, request.rows);
  }
}

std::vector<RowRange> rows_of(const MatrixRequest& request) {
  return request.row_ranges.empty() ? identity_rows(request.rows) : request.row_ranges;
}

RowRange columns_of(const MatrixRequest& request) {
  if (request.column_count > 0) return {.begin = request.column_begin, .count = request.column_count};
  return {.begin = request.column_begin, .count = request.cols - request.column_begin};
}

bool is_aligned(const std::byte* data, std::int64_t element_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(element_bytes) == 0;
}

// Buffers that old checkpoints carry and every implementation computes itself.
bool is_harmless_buffer(std::string_view name, const TensorInfo& info) {
  constexpr std::array<std::string_view, 4> kSuffixes{".rotary_emb.inv_freq", ".maybe_rotary.inv_freq",
                                                      ".rotary.inv_freq", ".attn.masked_bias"};
  for (const std::string_view suffix : kSuffixes) {
    if (name.ends_with(suffix)) return true;
  }
  // `attn.bias` is a causal mask only in these forms; a vector of floats would be a real bias.
  const bool is_mask = info.shape.size() == 4 || info.dtype == DType::kBool || info.dtype == DType::kUInt8;
  return name.ends_with(".attn.bias") && is_mask;
}

bool is_cache_scale(std::string_view name) {
  constexpr std::array<std::string_view, 5> kSuffixes{"self_attn.k_scale", "self_attn.v_scale", "self_attn.kv_scale",
                                                      "k_proj.output_scale", "v_proj.output_scale"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [name](std::string_view suffix) { return name.ends_with(suffix); });
}

std::vector<float> pick(std::vector<float> values, std::span<const RowRange> ranges) {
  if (ranges.empty()) return values;
  std::vector<float> picked;
  for (const RowRange& range : ranges) {
    CHECK_GE(range.begin, 0);
    CHECK_LE(range.begin + range.count, std::ssize(values));
    picked.insert(picked.end(), values.begin() + range.begin, values.begin() + range.begin + range.count);
  }
  return picked;
}

}  // namespace

WeightSource::WeightSource(std::optional<Checkpoint> checkpoint, DType dummy_dtype)
    : checkpoint_(std::move(checkpoint)), dummy_values_(dummy_dtype) {}

WeightSource::WeightSource(Checkpoint checkpoint)
    : WeightSource(std::optional(std::move(checkpoint)), DType::kFloat32) {}

WeightSource WeightSource::dummy(DType dtype) { return WeightSource(std::nullopt, dtype); }

bool WeightSource::has(std::string_view name, DummyHas in_dummy) const {
  return is_dummy() ? in_dummy == DummyHas::kYes : checkpoint_->has(name);
}

std::string WeightSource::first_of(std::initializer_list<std::string_view> names) const {
  CHECK(names.size() > 0);
  for (const std::string_view name : names) {
    if (has(name, DummyHas::kYes)) return std::string(name);
  }
  throw_mismatch(checkpoint_->path(), fmt::format("tensor {}", fmt::join(names, " or ")),
                 {.found = "none of these names", .expected = "one of them"});
}

DType WeightSource::dtype_of(std::string_view name) const {
  if (is_dummy()) return dummy_values_.dtype();
  const TensorInfo* info = checkpoint_->find(name);
  if (info == nullptr) {
    throw_mismatch(checkpoint_->path(), "tensor " + printable(name), {.found = "no such tensor", .expected = "it"});
  }
  return info->dtype;
}

const TensorInfo& WeightSource::checked_info(std::string_view name, std::span<const std::int64_t> shape) {
  const std::string expected = fmt::format("{} {}", kReadableDTypes, describe_shape(shape));
  const TensorInfo* info = checkpoint_->find(name);
  if (info == nullptr) {
    throw_mismatch(checkpoint_->path(), "tensor " + printable(name), {.found = "no such tensor", .expected = expected});
  }
  // A vector of one is also written as a scalar.
  const bool is_scalar = info->shape.empty() && shape.size() == 1 && shape[0] == 1;
  if (!is_float(info->dtype) ||
      (!is_scalar && !std::equal(shape.begin(), shape.end(), info->shape.begin(), info->shape.end()))) {
    throw_mismatch(checkpoint_->file_of(name).path(), "tensor " + printable(name),
                   {.found = info->describe(), .expected = expected});
  }
  used_.emplace(name);
  return *info;
}

void WeightSource::read_rows(const MatrixRequest& request, const RowSink& sink) {
  check_request(request);
  if (is_dummy()) {
    read_dummy_rows(request, sink);
  } else {
    read_file_rows(request, sink);
  }
}

void WeightSource::read_file_rows(const MatrixRequest& request, const RowSink& sink) {
  const bool is_transposed = request.orientation == Orientation::kInOut;
  const std::array<std::int64_t, 2> file_shape =
      is_transposed ? std::array{request.cols, request.rows} : std::array{request.rows, request.cols};
  const TensorInfo& info = checked_info(request.name, file_shape);
  const SafetensorsFile& file = checkpoint_->file_of(request.name);
  const SourceMatrix source{
      .data = file.bytes(info).data(), .row_elements = file_shape[1], .element_bytes = dtype_bytes(info.dtype)};
  const RowRange columns = columns_of(request);
  const std::int64_t row_bytes = columns.count * source.element_bytes;
  if (row_bytes == 0) return;
  const bool is_direct =
      !is_transposed && columns.count == request.cols && is_aligned(source.data, source.element_bytes);

  const auto take = [&](std::int64_t row_begin, std::span<const RowRange> pieces) {
    const std::int64_t num_rows = count_rows(pieces);
    const std::byte* rows = source.data + pieces[0].begin * row_bytes;
    if (!is_direct || pieces.size() > 1) {
      std::byte* next_row = staging(num_rows * row_bytes);
      rows = next_row;
      for (const RowRange& piece : pieces) {
        (is_transposed ? transpose_rows : copy_rows)(source, piece, columns, next_row);
        next_row += piece.count * row_bytes;
      }
    }
    // Tensor has no read-only form; sinks read.
    sink(row_begin, Tensor(const_cast<std::byte*>(rows), info.dtype, {num_rows, columns.count}));
    const std::int64_t file_row_bytes = file_shape[1] * source.element_bytes;
    for (const RowRange& piece : pieces) {
      // A transposed block touches pages all over the tensor, which the next block needs again.
      if (is_transposed || piece.count * file_row_bytes < kMinReleaseBytes) continue;
      file.release(info, piece.begin * file_row_bytes, piece.count * file_row_bytes);
    }
    report(num_rows * row_bytes);
  };
  for_each_block(rows_of(request), rows_per_block(row_bytes), take);
  file.release(info);
}

void WeightSource::read_dummy_rows(const MatrixRequest& request, const RowSink& sink) {
  const DType dtype = dummy_values_.dtype();
  const std::int64_t element_bytes = dtype_bytes(dtype);
  const RowRange columns = columns_of(request);
  const std::int64_t row_bytes = columns.count * element_bytes;
  if (row_bytes == 0) return;
  const std::int64_t whole_row_bytes = request.cols * element_bytes;
  for_each_block(
      rows_of(request), rows_per_block(row_bytes), [&](std::int64_t row_begin, std::span<const RowRange> pieces) {
        const std::int64_t num_rows = count_rows(pieces);
        // One row more than the block: a slice's whole row is made there and cut.
        std::byte* rows = staging(num_rows * row_bytes + whole_row_bytes);
        std::byte* whole_row = rows + num_rows * row_bytes;
        std::byte* next_row = rows;
        for (const RowRange& piece : pieces) {
          for (std::int64_t row = piece.begin; row < piece.begin + piece.count; ++row) {
            if (columns.count == request.cols) {
              dummy_values_.fill_row(request.name, row, request.cols, next_row);
            } else {
              dummy_values_.fill_row(request.name, row, request.cols, whole_row);
              std::memcpy(next_row, whole_row + columns.begin * element_bytes, static_cast<std::size_t>(row_bytes));
            }
            next_row += row_bytes;
          }
        }
        sink(row_begin, Tensor(rows, dtype, {num_rows, columns.count}));
        report(num_rows * row_bytes);
      });
}

void WeightSource::count_made(const MatrixRequest& request) const {
  report(request.rows * request.cols * dtype_bytes(dummy_values_.dtype()));
}

std::vector<float> WeightSource::read_vector(std::string_view name, std::int64_t count,
                                             std::span<const RowRange> ranges) {
  return pick(read_floats(name, {count}), ranges);
}

std::vector<float> WeightSource::read_floats(std::string_view name, std::initializer_list<std::int64_t> shape) {
  const std::span<const std::int64_t> expected_shape(shape.begin(), shape.size());
  if (is_dummy()) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return dummy_values_.vector(name, count);
  }
  const TensorInfo& info = checked_info(name, expected_shape);
  const SafetensorsFile& file = checkpoint_->file_of(name);
  std::vector<float> values(static_cast<std::size_t>(info.num_bytes / dtype_bytes(info.dtype)));
  widen_to_floats(file.bytes(info).data(), info.dtype, values);
  file.release(info);
  report(info.num_bytes);
  return values;
}

bool WeightSource::equal_tensors(std::string_view first, std::string_view second) const {
  if (is_dummy()) return true;
  CHECK(checkpoint_->has(first));
  CHECK(checkpoint_->has(second));
  const TensorInfo& first_info = *checkpoint_->find(first);
  const TensorInfo& second_info = *checkpoint_->find(second);
  if (first_info.dtype != second_info.dtype || first_info.shape != second_info.shape) return false;
  const SafetensorsFile& first_file = checkpoint_->file_of(first);
  const SafetensorsFile& second_file = checkpoint_->file_of(second);
  for (std::int64_t begin = 0; begin < first_info.num_bytes; begin += kBlockBytes) {
    const std::int64_t num_bytes = std::min(kBlockBytes, first_info.num_bytes - begin);
    const bool is_equal =
        std::memcmp(first_file.bytes(first_info).data() + begin, second_file.bytes(second_info).data() + begin,
                    static_cast<std::size_t>(num_bytes)) == 0;
    first_file.release(first_info, begin, num_bytes);
    second_file.release(second_info, begin, num_bytes);
    if (!is_equal) return false;
  }
  return true;
}

void WeightSource::mark_used(std::string_view name) { used_.emplace(name); }

void WeightSource::finish() const {
  if (is_dummy()) return;
  std::vector<std::string> left_over;
  std::int64_t num_scales = 0;
  for (const std::string& name : checkpoint_->names()) {
    if (used_.contains(name) || is_harmless_buffer(name, *checkpoint_->find(name))) continue;
    if (is_cache_scale(name)) {
      ++num_scales;
    } else {
      left_over.push_back(printable(name));
    }
  }
  if (num_scales > 0) {
    spdlog::info("{}: {} scales of a quantized key-value cache are not used", checkpoint_->path(), num_scales);
  }
  if (left_over.empty()) return;
  const std::size_t num_listed = std::min(left_over.size(), kMaxListedNames);
  const auto listed = std::span(left_over).first(num_listed);
  const std::string more =
      left_over.size() > num_listed ? fmt::format(" and {} more", left_over.size() - num_listed) : "";
  throw StartError(fmt::format("{}: weights left over: found {} that this model does not read ({}{}), expected none",
                               printable(checkpoint_->path(), 4096), left_over.size(), fmt::join(listed, ", "), more));
}

std::byte* WeightSource::staging(std::int64_t num_bytes) {
  if (staging_.num_bytes() < num_bytes) staging_ = Buffer(host_allocator(), num_bytes);
  return static_cast<std::byte*>(staging_.raw());
}

void WeightSource::report(std::int64_t num_bytes) const {
  if (bytes_read_) bytes_read_(num_bytes);
}

}  // namespace shoal
