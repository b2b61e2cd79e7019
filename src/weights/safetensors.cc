#include "weights/safetensors.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "weights/start_error.h"

namespace shoal {
namespace {

// The start of the file, as much of it as the header takes.
std::vector<std::byte> read_head(const RegularFile& file) {
  std::uint64_t header_bytes = 0;
  if (file.num_bytes() >= 8) file.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  const auto wanted = static_cast<std::int64_t>(std::min<std::uint64_t>(header_bytes, kMaxSafetensorsHeaderBytes)) + 8;
  std::vector<std::byte> head(static_cast<std::size_t>(std::min(wanted, file.num_bytes())));
  file.read(0, head);
  return head;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(path), header_(parse_safetensors_header(read_head(file_), file_.num_bytes(), path)) {}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto position = header_.tensors.find(name);
  return position == header_.tensors.end() ? nullptr : &position->second;
}

void SafetensorsReader::read(const TensorInfo& info, void* out) const {
  file_.read(info.byte_begin, {static_cast<std::byte*>(out), static_cast<std::size_t>(info.num_bytes)});
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const RegularFile file(path);
  file_bytes_ = file.num_bytes();
  if (file_bytes_ > 0) {
    void* mapped = ::mmap(nullptr, static_cast<std::size_t>(file_bytes_), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (mapped == MAP_FAILED) {
      throw_mismatch(path, "mapping the file", {.found = std::strerror(errno), .expected = "a mappable file"});
    }
    mapped_ = static_cast<std::byte*>(mapped);
    // Tensors are read from front to back: let the kernel read far ahead. A refusal only costs speed.
    ::madvise(mapped, static_cast<std::size_t>(file_bytes_), MADV_SEQUENTIAL);
  }
  try {
    header_ = parse_safetensors_header({mapped_, static_cast<std::size_t>(file_bytes_)}, file_bytes_, path);
  } catch (...) {
    unmap();
    throw;
  }
  release({.byte_begin = 0, .num_bytes = header_.data_begin});
}

SafetensorsFile::~SafetensorsFile() { unmap(); }

void SafetensorsFile::unmap() noexcept {
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<std::size_t>(file_bytes_));
  mapped_ = nullptr;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept { *this = std::move(other); }

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapped_, other.mapped_);
  std::swap(file_bytes_, other.file_bytes_);
  std::swap(header_, other.header_);
  return *this;
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto position = header_.tensors.find(name);
  if (position == header_.tensors.end()) {
    throw_mismatch(path_, "tensor " + printable(name),
                   {.found = fmt::format("no such name among {}", header_.tensors.size()), .expected = "the tensor"});
  }
  return position->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  CHECK_LE(info.byte_begin + info.num_bytes, file_bytes_);
  return {mapped_ + info.byte_begin, static_cast<std::size_t>(info.num_bytes)};
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo& found = info(name);
  if (found.shape.size() > Tensor::kMaxDims) {
    throw_mismatch(path_, "tensor " + printable(name),
                   {.found = found.describe(), .expected = fmt::format("at most {} dimensions", Tensor::kMaxDims)});
  }
  std::byte* data = mapped_ + found.byte_begin;
  if (found.shape.empty()) return Tensor(data, found.dtype, {1});
  return Tensor(data, found.dtype, found.shape);
}

void SafetensorsFile::release(const TensorInfo& info, std::int64_t byte_begin, std::int64_t num_bytes) const {
  CHECK_GE(byte_begin, 0);
  CHECK_LE(byte_begin + num_bytes, info.num_bytes);
  if (num_bytes <= 0) return;
  // Rounded outwards: the mapping is read-only and backed by the file, so a page dropped too early comes back.
  const std::int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = (info.byte_begin + byte_begin) / page_bytes * page_bytes;
  const std::int64_t end = info.byte_begin + byte_begin + num_bytes;
  ::madvise(mapped_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace shoal
