#include "weights/regular_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "weights/start_error.h"

namespace shoal {

RegularFile::RegularFile(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) throw_mismatch(path, "file", {.found = std::strerror(errno), .expected = "a readable file"});
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw_mismatch(path, "file", {.found = "no regular file", .expected = "a regular file"});
  }
  num_bytes_ = status.st_size;
}

RegularFile::~RegularFile() { ::close(descriptor_); }

void RegularFile::read(std::int64_t begin, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(descriptor_, out.data() + done, out.size() - done, begin + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw_mismatch(path_, fmt::format("bytes {} to {}", begin, begin + static_cast<std::int64_t>(out.size())),
                     {.found = count < 0 ? std::strerror(errno) : "the end of the file",
                      .expected = "the bytes that its header names"});
    }
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace shoal
