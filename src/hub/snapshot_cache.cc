#include "hub/snapshot_cache.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <system_error>

#include <unistd.h>

#include "hub/http_client.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".shoal";
constexpr const char* kMade = "made";  // a line of the marker: this program made the folder
constexpr std::chrono::minutes kKept{10};
constexpr std::size_t kMostReaders = 10'000;

Error unwritable(std::string_view what, const std::error_code& error) {
  return {ErrorCode::kUnavailable, fmt::format("the adapter cache cannot be written ({}): {}", what, error.message())};
}

std::vector<std::string> read_lines(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Next to `file`, for its successor.
fs::path fresh_name(const fs::path& file) {
  static std::atomic<std::uint64_t> count{0};
  return file.parent_path() / fmt::format(".{}.{}.{}.new", file.filename().string(), ::getpid(), ++count);
}

// Readers see the old file or the new one.
Status replace_file(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  const fs::path fresh = fresh_name(file);
  std::ofstream stream(fresh, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) error = std::make_error_code(std::errc::io_error);
  if (!error) fs::rename(fresh, file, error);
  if (!error) return Ok{};
  std::error_code ignored;
  fs::remove(fresh, ignored);
  return unwritable(file.filename().string(), error);
}

std::int64_t size_of(const fs::path& file) {
  std::error_code error;
  const std::uintmax_t num_bytes = fs::file_size(file, error);
  return error ? -1 : static_cast<std::int64_t>(num_bytes);
}

std::int64_t bytes_in(const fs::path& folder) {
  std::int64_t num_bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    num_bytes += std::max<std::int64_t>(0, size_of(entry->path()));
  }
  return num_bytes;
}

// Repositories that this program fetched from.
std::vector<fs::path> marked_folders(const fs::path& root) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code absent;
    if (fs::exists(entry->path() / kMarker, absent)) folders.push_back(entry->path());
  }
  return folders;
}

void touch(const fs::path& file) {
  std::error_code absent;  // a repository that another program fetched, which is never evicted
  fs::last_write_time(file, fs::file_time_type::clock::now(), absent);
}

std::string reader_line(const std::string& reader) { return "reader " + reader; }

bool is_commit(const std::string& text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool is_file_name(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-';
         });
}

SnapshotCache::SnapshotCache(fs::path root, std::int64_t quota_bytes)
    : root_(std::move(root)), quota_bytes_(quota_bytes) {}

std::optional<fs::path> SnapshotCache::find(const std::string& repo, const std::string& commit,
                                            const std::vector<RemoteFile>& files) {
  const std::lock_guard lock(mutex_);
  fs::path folder = repo_folder(repo) / "snapshots" / commit;
  for (const RemoteFile& file : files) {
    const fs::path path = folder / file.name;
    if (size_of(path) != file.num_bytes) return std::nullopt;
    std::error_code error;
    const fs::path target = fs::read_symlink(path, error);  // where links cannot be had, others put the file itself
    if (!error && target.filename() != file.etag) return std::nullopt;
  }
  touch(repo_folder(repo) / kMarker);
  return folder;
}

std::optional<std::string> SnapshotCache::known_commit(const std::string& repo, const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const std::vector<std::string> lines = read_lines(repo_folder(repo) / "refs" / revision);
  if (lines.empty() || !is_commit(lines.front())) return std::nullopt;
  return lines.front();
}

std::optional<fs::path> SnapshotCache::find_known(const std::string& repo, const std::string& commit,
                                                  const std::vector<std::string>& names, const std::string& reader) {
  const std::lock_guard lock(mutex_);
  const fs::path marker = repo_folder(repo) / kMarker;
  const std::vector<std::string> readers = read_lines(marker);
  // Without a marker another program fetched it: whoever runs this one put it there.
  std::error_code absent;
  const bool marked = fs::exists(marker, absent);
  if (marked && std::find(readers.begin(), readers.end(), reader_line(reader)) == readers.end()) return std::nullopt;
  fs::path folder = repo_folder(repo) / "snapshots" / commit;
  for (const std::string& name : names) {
    if (size_of(folder / name) < 0) return std::nullopt;
  }
  touch(marker);
  return folder;
}

Result<SnapshotCache::Room> SnapshotCache::reserve(const std::string& repo, const RemoteFile& file,
                                                   const HttpClient& client) {
  // The threads of this process wait at the mutex, other processes at the file.
  const std::lock_guard lock(mutex_);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const std::optional<FileLock> shared = FileLock::take(root_ / ".locks" / "shoal.lock", client, patience);
  if (!shared) return Error{ErrorCode::kUnavailable, "the adapter cache cannot be locked"};
  std::error_code error;
  const bool made = fs::create_directories(repo_folder(repo), error);
  if (!error) fs::create_directories(repo_folder(repo) / "blobs", error);
  if (error) return unwritable(repo, error);
  const fs::path marker = repo_folder(repo) / kMarker;
  if (made || !fs::exists(marker, error)) {
    const Status marked = replace_file(marker, made ? fmt::format("{}\n", kMade) : "");
    if (!marked.ok()) return marked.error();
  }
  const std::int64_t there = std::max<std::int64_t>(0, size_of(incomplete_file(repo, file)));
  const std::int64_t wanted = std::max<std::int64_t>(0, file.num_bytes - there);
  while (used_bytes() + reserved_bytes_ + wanted > quota_bytes_) {
    if (evict_one(repo)) continue;
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{} needs {} bytes more, beyond the {} bytes that downloads may take", file.name, wanted,
                             quota_bytes_)};
  }
  reserved_bytes_ += wanted;
  return Room(*this, wanted);
}

void SnapshotCache::give_back(std::int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= num_bytes;
}

std::int64_t SnapshotCache::used_bytes() const {
  std::int64_t num_bytes = 0;
  for (const fs::path& folder : marked_folders(root_)) num_bytes += bytes_in(folder / "blobs");
  return num_bytes;
}

bool SnapshotCache::evict_one(const std::string& but) const {
  const fs::path* oldest = nullptr;
  fs::file_time_type oldest_time = fs::file_time_type::clock::now() - kKept;
  const std::vector<fs::path> folders = marked_folders(root_);
  for (const fs::path& folder : folders) {
    std::error_code error;
    const fs::file_time_type used = fs::last_write_time(folder / kMarker, error);
    if (error || used >= oldest_time || folder.filename() == but) continue;
    const std::vector<std::string> lines = read_lines(folder / kMarker);
    if (lines.empty() || lines.front() != kMade) continue;
    oldest = &folder;
    oldest_time = used;
  }
  if (oldest == nullptr) return false;
  spdlog::info("adapter cache: {} makes place", oldest->filename().string());
  std::error_code error;
  const fs::path fresh = fresh_name(*oldest);  // others see it whole or not at all
  fs::rename(*oldest, fresh, error);
  if (error) return false;
  fs::remove_all(fresh, error);
  return !error;
}

fs::path SnapshotCache::lock_file(const std::string& repo, const RemoteFile& file) const {
  return root_ / ".locks" / repo / (file.etag + ".lock");
}

fs::path SnapshotCache::incomplete_file(const std::string& repo, const RemoteFile& file) const {
  return repo_folder(repo) / "blobs" / (file.etag + ".incomplete");
}

bool SnapshotCache::has_blob(const std::string& repo, const RemoteFile& file) const {
  return size_of(repo_folder(repo) / "blobs" / file.etag) == file.num_bytes;
}

Status SnapshotCache::finish_blob(const std::string& repo, const RemoteFile& file) const {
  std::error_code error;
  fs::rename(incomplete_file(repo, file), repo_folder(repo) / "blobs" / file.etag, error);
  if (error) return unwritable(file.name, error);
  return Ok{};
}

Status SnapshotCache::link(const std::string& repo, const std::string& commit,
                           const std::vector<RemoteFile>& files) const {
  std::error_code error;
  const fs::path folder = repo_folder(repo) / "snapshots" / commit;
  fs::create_directories(folder, error);
  for (const RemoteFile& file : files) {
    const fs::path path = folder / file.name;
    const fs::path fresh = fresh_name(path);
    if (!error) fs::create_symlink(fs::path("../../blobs") / file.etag, fresh, error);
    if (!error) fs::rename(fresh, path, error);
    if (error) return unwritable(file.name, error);
  }
  return Ok{};
}

Status SnapshotCache::note(const std::string& repo, const std::string& revision, const std::string& commit,
                           const std::string& reader) {
  const std::lock_guard lock(mutex_);
  if (revision != commit && known_commit(repo, revision) != commit) {
    const Status written = replace_file(repo_folder(repo) / "refs" / revision, commit);
    if (!written.ok()) return written;
  }
  const fs::path marker = repo_folder(repo) / kMarker;
  std::vector<std::string> lines = read_lines(marker);
  if (std::find(lines.begin(), lines.end(), reader_line(reader)) != lines.end()) return Ok{};
  std::error_code absent;
  if (!fs::exists(marker, absent)) return Ok{};  // another program's: anybody may read it, as before
  if (lines.size() >= kMostReaders) return Ok{};
  lines.push_back(reader_line(reader));
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return replace_file(marker, text);
}

}  // namespace shoal
