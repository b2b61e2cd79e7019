// RegularFile: an open regular file, closed with this object. Used by the readers of safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace shoal {

class RegularFile {
 public:
  // StartError when there is no readable regular file at `path`; a pipe or a device is refused without waiting for it.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  // When it was opened.
  std::int64_t num_bytes() const { return num_bytes_; }
  // Fills `out` from the byte `begin` on; StartError when the file ends before that, as one being rewritten may.
  void read(std::int64_t begin, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t num_bytes_ = 0;
};

}  // namespace shoal
