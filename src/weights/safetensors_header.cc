#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "weights/json_text.h"
#include "weights/safetensors.h"
#include "weights/start_error.h"

namespace shoal {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::array<std::string_view, 9> kDTypeNames{"F32", "BF16", "F16", "F8_E4M3", "I8",
                                                      "U8",  "I32",  "I64", "BOOL"};

// Parses one tensor's entry; every failure names the file and the tensor.
class EntryParser {
 public:
  EntryParser(std::string_view file, const std::string& name, const nlohmann::json& entry)
      : file_(file), name_(name), entry_(entry) {}

  TensorInfo parse(std::int64_t data_begin, std::int64_t data_bytes) const {
    if (!entry_.is_object()) fail(describe_json(entry_), "an object with dtype, shape and data_offsets");
    TensorInfo info;
    info.dtype = parse_dtype();
    info.shape = parse_counts("shape");
    const std::vector<std::int64_t> offsets = parse_counts("data_offsets");
    if (offsets.size() != 2) fail(fmt::format("{} data_offsets", offsets.size()), "2 (begin and end)");
    const std::int64_t begin = offsets[0];
    const std::int64_t end = offsets[1];
    if (begin > end) fail(fmt::format("data_offsets [{}, {}]", begin, end), "begin <= end");
    if (end > data_bytes) {
      fail(fmt::format("{} bytes of tensor data in the file", data_bytes),
           fmt::format("at least {} (truncated?)", end));
    }
    const std::optional<std::int64_t> num_bytes = bytes_of(info);
    if (!num_bytes.has_value() || *num_bytes != end - begin) {
      fail(fmt::format("{} bytes in data_offsets", end - begin),
           num_bytes.has_value() ? fmt::format("{} for {}", *num_bytes, info.describe())
                                 : fmt::format("a shape below 2^63 bytes instead of {}", info.describe()));
    }
    info.byte_begin = data_begin + begin;
    info.num_bytes = end - begin;
    return info;
  }

 private:
  [[noreturn]] void fail(std::string_view found, std::string_view expected) const {
    throw_mismatch(file_, "tensor " + printable(name_), {.found = found, .expected = expected});
  }

  const nlohmann::json& member(const char* key) const {
    const auto position = entry_.find(key);
    if (position == entry_.end()) fail(fmt::format("no {}", key), "dtype, shape and data_offsets");
    return *position;
  }

  DType parse_dtype() const {
    const nlohmann::json& value = member("dtype");
    if (value.is_string()) {
      const auto dtype = dtype_from_safetensors(value.get_ref<const std::string&>());
      if (dtype.has_value()) return *dtype;
    }
    fail("dtype " + describe_json(value), fmt::format("one of {}", fmt::join(kDTypeNames, ", ")));
  }

  std::vector<std::int64_t> parse_counts(const char* key) const {
    const nlohmann::json& value = member(key);
    if (!value.is_array()) fail(fmt::format("{} {}", key, describe_json(value)), "a list of integers");
    std::vector<std::int64_t> counts;
    for (const nlohmann::json& item : value) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
        fail(fmt::format("{} in {}", describe_json(item), key), "integers from 0 below 2^63");
      }
      counts.push_back(item.get<std::int64_t>());
    }
    return counts;
  }

  // Nullopt on overflow, which is looked for without the zeros: a product of some extents must be safe as well.
  static std::optional<std::int64_t> bytes_of(const TensorInfo& info) {
    std::int64_t product = dtype_bytes(info.dtype);
    bool is_empty = false;
    for (const std::int64_t extent : info.shape) {
      if (extent == 0) {
        is_empty = true;
      } else if (__builtin_mul_overflow(product, extent, &product)) {
        return std::nullopt;
      }
    }
    return is_empty ? 0 : product;
  }

  std::string_view file_;
  const std::string& name_;
  const nlohmann::json& entry_;
};

std::map<std::string, std::string, std::less<>> parse_metadata(const nlohmann::json& entry, std::string_view file) {
  if (!entry.is_object()) {
    throw_mismatch(file, kMetadataKey, {.found = describe_json(entry), .expected = "an object of strings"});
  }
  std::map<std::string, std::string, std::less<>> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      throw_mismatch(file, fmt::format("{} key {}", kMetadataKey, printable(key)),
                     {.found = describe_json(value), .expected = "a string"});
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// The ranges must tile the data: what two tensors share, or none names, is not what the writer meant.
void check_tiling(const SafetensorsHeader& header, std::int64_t data_bytes, std::string_view file) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> in_file_order;
  in_file_order.reserve(header.tensors.size());
  for (const auto& [name, info] : header.tensors) in_file_order.emplace_back(&name, &info);
  std::sort(in_file_order.begin(), in_file_order.end(), [](const auto& left, const auto& right) {
    return std::pair(left.second->byte_begin, left.second->num_bytes) <
           std::pair(right.second->byte_begin, right.second->num_bytes);
  });
  std::int64_t expected_begin = header.data_begin;
  for (const auto& [name, info] : in_file_order) {
    if (info->byte_begin != expected_begin) {
      const char* kind =
          info->byte_begin < expected_begin ? "overlaps the tensor before it" : "leaves a hole before it";
      throw_mismatch(file, "tensor " + printable(*name),
                     {.found = fmt::format("data at {} (it {})", info->byte_begin - header.data_begin, kind),
                      .expected = fmt::format("data at {}", expected_begin - header.data_begin)});
    }
    expected_begin += info->num_bytes;
  }
  if (expected_begin - header.data_begin != data_bytes) {
    throw_mismatch(file, "tensor data",
                   {.found = fmt::format("{} bytes", data_bytes),
                    .expected = fmt::format("{} bytes, as the header names", expected_begin - header.data_begin)});
  }
}

std::int64_t read_header_bytes(std::span<const std::byte> head, std::int64_t file_bytes, std::string_view file) {
  if (file_bytes < kLengthBytes || std::ssize(head) < kLengthBytes) {
    throw_mismatch(file, "file size",
                   {.found = fmt::format("{} bytes", file_bytes), .expected = "at least 8 bytes of header length"});
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
  if (length > std::uint64_t{kMaxSafetensorsHeaderBytes}) {
    throw_mismatch(file, "header length",
                   {.found = fmt::format("{} bytes", length),
                    .expected = fmt::format("at most {} bytes", kMaxSafetensorsHeaderBytes)});
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  const std::int64_t present_bytes = std::min(file_bytes, std::ssize(head)) - kLengthBytes;
  if (header_bytes > present_bytes) {
    throw_mismatch(file, "header",
                   {.found = fmt::format("{} bytes (truncated?)", present_bytes),
                    .expected = fmt::format("{} bytes", header_bytes)});
  }
  return header_bytes;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::int64_t file_bytes,
                                           std::string_view file) {
  const std::int64_t header_bytes = read_header_bytes(head, file_bytes, file);
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + header_bytes;
  const std::int64_t data_bytes = file_bytes - header.data_begin;
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<std::size_t>(header_bytes));
  const nlohmann::json document = parse_json_object(text, file, DuplicateKeys::kRefuse);
  for (const auto& [name, entry] : document.items()) {
    if (name == kMetadataKey) {
      header.metadata = parse_metadata(entry, file);
    } else {
      header.tensors.emplace(name, EntryParser(file, name, entry).parse(header.data_begin, data_bytes));
    }
  }
  check_tiling(header, data_bytes, file);
  return header;
}

std::string TensorInfo::describe() const { return fmt::format("{} {}", dtype_name(dtype), describe_shape(shape)); }

std::string_view safetensors_dtype_name(DType dtype) {
  for (const std::string_view name : kDTypeNames) {
    if (dtype_from_safetensors(name) == dtype) return name;
  }
  CHECK(false);
  return {};
}

}  // namespace shoal
