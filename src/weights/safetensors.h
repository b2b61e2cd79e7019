// SafetensorsFile and SafetensorsReader: one .safetensors file (https://github.com/huggingface/safetensors), mapped or
// read by copies, validated before the first tensor is handed out. Used by Checkpoint, lora/ and `shoal logits`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "weights/regular_file.h"

namespace shoal {

// Where one tensor lies and what it is, as its file says.
struct TensorInfo {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape = {};  // empty for a scalar
  std::int64_t byte_begin = 0;           // from the start of the file
  std::int64_t num_bytes = 0;

  std::string describe() const;  // "bfloat16 [3, 128]", for messages
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;  // `__metadata__`
  std::int64_t data_begin = 0;                               // first byte after the header
};

inline constexpr std::int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Parses and fully validates a header. `head` is the start of the file (more of it than the header does no harm),
// `file_bytes` the size of the whole file, `file` its name for messages. Refused, each with a StartError that names
// file, tensor, found and expected: truncated files, headers over 100 MB, malformed JSON, unknown dtypes, names that
// stand twice, shapes that do not match their byte range, ranges that overlap, leave a hole or end outside the file.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::int64_t file_bytes,
                                           std::string_view file);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return header_.metadata; }
  bool has(std::string_view name) const { return header_.tensors.contains(name); }
  // What the file says of `name`; StartError when it is not there.
  const TensorInfo& info(std::string_view name) const;

  // The mapped bytes of a tensor. They may lie unaligned for their dtype: read them with memcpy or tensor_values.h.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  // The same as a view, read-only memory; a scalar is seen as [1]. StartError when `name` is not there or has more
  // than four dimensions.
  Tensor tensor(std::string_view name) const;

  // Takes the pages of a byte range (counted inside the tensor) out of this process's resident memory, after it was
  // copied elsewhere. Later reads are still right: they fault the pages in again.
  void release(const TensorInfo& info, std::int64_t byte_begin, std::int64_t num_bytes) const;
  void release(const TensorInfo& info) const { release(info, 0, info.num_bytes); }

 private:
  void unmap() noexcept;

  std::string path_;
  std::byte* mapped_ = nullptr;
  std::int64_t file_bytes_ = 0;
  SafetensorsHeader header_;
};

// For files that others may rewrite while they are read, such as adapters of a running server: a mapping of one that
// shrinks would end the process.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return header_.tensors; }
  // Null when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  // Copies a tensor's info.num_bytes to `out`; StartError when the file no longer holds them.
  void read(const TensorInfo& info, void* out) const;

 private:
  RegularFile file_;
  SafetensorsHeader header_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Writes a file that the reader above and Hugging Face's accept: data 8-byte aligned, wide dtypes first. Names must
// be unique. It appears under `path` whole or not at all; StartError when it cannot be written.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string, std::less<>>& metadata = {});

// "F32", "BF16", ...: the inverse of dtype_from_safetensors.
std::string_view safetensors_dtype_name(DType dtype);

}  // namespace shoal
