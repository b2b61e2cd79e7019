// FileDescriptor, an owner; FileLock, which processes and threads share by a file. Used by the cache of snapshots and
// by downloads.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "hub/http_client.h"

namespace shoal {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }  // -1: it could not be opened

 private:
  int fd_;
};

// Held until it is destroyed, or its process ends. flock(2) on the whole file, as huggingface_hub does.
class FileLock {
 public:
  // Waits; none when `client` is stopped or `deadline` passes first, or the file cannot be made.
  static std::optional<FileLock> take(const std::filesystem::path& file, const HttpClient& client,
                                      std::chrono::steady_clock::time_point deadline);

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace shoal
