#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace shoal {

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<FileLock> FileLock::take(const std::filesystem::path& file, const HttpClient& client,
                                       std::chrono::steady_clock::time_point deadline) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  FileDescriptor opened(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (opened.get() < 0) return std::nullopt;
  while (::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
    const bool late = std::chrono::steady_clock::now() > deadline;
    if (late || !client.sleep(std::chrono::milliseconds(50))) return std::nullopt;
  }
  return FileLock(std::move(opened));
}

}  // namespace shoal
