// Files that may change while the server runs: API keys, certificates. Used by api_keys.cc, api_key_file.cc and tls.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace shoal {

// The whole of a regular file. StartError beginning with "{what} {path}: " where it is none, is larger than `max_bytes`
// or cannot be read.
std::string read_small_file(const std::string& what, const std::filesystem::path& path, std::uintmax_t max_bytes);

// Looks at files from time to time, on a thread of its own.
class FileWatch {
 public:
  // Remembers how they look now: to be made before they are read, so that no change between the two is missed.
  explicit FileWatch(std::vector<std::filesystem::path> files);
  ~FileWatch() = default;
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Calls `on_change` on the watch's thread whenever one of them has changed, appeared or gone; it must not throw, and
  // what it uses outlives this. Once.
  void start(std::chrono::milliseconds interval, std::function<void()> on_change);

 private:
  struct FileState {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t bytes = 0;
    std::int64_t modified_ns = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const FileState&) const = default;
  };
  using FileStates = std::vector<std::optional<FileState>>;  // none: it is not there
  static std::optional<FileState> look_at(const std::filesystem::path& path);
  FileStates look() const;
  void watch(const std::stop_token& stop);

  const std::vector<std::filesystem::path> files_;
  FileStates seen_;  // of watch() once that runs
  std::chrono::milliseconds interval_{1000};
  std::function<void()> on_change_;
  std::mutex sleep_mutex_;
  std::condition_variable_any sleep_;
  std::jthread watcher_;  // last: it uses all above
};

}  // namespace shoal
