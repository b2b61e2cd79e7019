#include "server/file_watch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/result.h"

namespace shoal {

namespace {

std::int64_t nanoseconds(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

std::string read_small_file(const std::string& what, const std::filesystem::path& path, std::uintmax_t max_bytes) {
  const std::string place = fmt::format("{} {}: ", what, path.string());
  std::error_code error;
  // A pipe would hold up whoever opens it.
  const bool is_file = std::filesystem::is_regular_file(path, error);
  if (error || !is_file) throw StartError(place + (error ? error.message() : "is no regular file"));
  if (std::filesystem::file_size(path, error) > max_bytes || error) {
    throw StartError(fmt::format("{}is larger than {} bytes", place, max_bytes));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw StartError(place + std::error_code(errno, std::generic_category()).message());
  std::string text(std::istreambuf_iterator<char>(stream), {});
  if (stream.bad()) throw StartError(place + "cannot be read");
  return text;
}

FileWatch::FileWatch(std::vector<std::filesystem::path> files) : files_(std::move(files)), seen_(look()) {}

void FileWatch::start(std::chrono::milliseconds interval, std::function<void()> on_change) {
  interval_ = interval;
  on_change_ = std::move(on_change);
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

std::optional<FileWatch::FileState> FileWatch::look_at(const std::filesystem::path& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileState{.device = status.st_dev,
                   .inode = status.st_ino,
                   .bytes = status.st_size,
                   .modified_ns = nanoseconds(status.st_mtim),
                   .changed_ns = nanoseconds(status.st_ctim)};
}

FileWatch::FileStates FileWatch::look() const {
  FileStates states;
  for (const std::filesystem::path& file : files_) states.push_back(look_at(file));
  return states;
}

void FileWatch::watch(const std::stop_token& stop) {
  std::unique_lock lock(sleep_mutex_);
  while (!stop.stop_requested()) {
    sleep_.wait_for(lock, stop, interval_, [] { return false; });
    if (stop.stop_requested()) return;
    // Looked at before they are read: what is written meanwhile makes another state, and is read the next time.
    FileStates now = look();
    if (now == seen_) continue;
    seen_ = std::move(now);
    on_change_();
  }
}

}  // namespace shoal
