// SnapshotCache: adapters that were fetched, in the layout of Hugging Face's cache, which other programs share:
//   models--org--name/blobs/ETAG, refs/REVISION, snapshots/COMMIT/FILE -> ../../blobs/ETAG; .locks/
// and in each repository that this program fetched from, `.shoal`: who may read it without asking the hub again.
// Used by SnapshotFetcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "hub/file_lock.h"

namespace shoal {

// One file of a snapshot, as its source tells of it.
struct RemoteFile {
  std::string name;
  std::string etag;  // safe as a file's name
  std::int64_t num_bytes = 0;
  std::string sha256;  // "": not known
};

// Letters, digits, '.', '_' and '-', not beginning with '.', at most 128: safe as one step of a path.
bool is_file_name(const std::string& text);

// Safe to use from several threads and processes at once.
class SnapshotCache {
 public:
  // Nothing is made before the first download. `quota_bytes`: of what this program downloaded and still lies there.
  SnapshotCache(std::filesystem::path root, std::int64_t quota_bytes);

  // `repo` is "models--org--name" or the like; `commit`, `repo` and names of files are safe as steps of paths.
  // The snapshot's folder, if all of `files` are there and whole; it is not evicted for the next ten minutes.
  std::optional<std::filesystem::path> find(const std::string& repo, const std::string& commit,
                                            const std::vector<RemoteFile>& files);
  // Without asking anybody: the commit that `revision` last stood for, or itself where it is one; and a folder that has
  // files of these names, for a `reader` that may have it.
  std::optional<std::string> known_commit(const std::string& repo, const std::string& revision) const;
  std::optional<std::filesystem::path> find_known(const std::string& repo, const std::string& commit,
                                                  const std::vector<std::string>& names, const std::string& reader);

  // Room for what is missing of `file`, until the Room is gone. What was not used for ten minutes makes place, the
  // longest unused first; of repositories that this program made alone.
  class Room;
  Result<Room> reserve(const std::string& repo, const RemoteFile& file, const HttpClient& client);
  // Held by whoever writes `incomplete_file`; the name is huggingface_hub's.
  std::filesystem::path lock_file(const std::string& repo, const RemoteFile& file) const;
  std::filesystem::path incomplete_file(const std::string& repo, const RemoteFile& file) const;
  bool has_blob(const std::string& repo, const RemoteFile& file) const;
  // The incomplete file, whole now, becomes the blob.
  Status finish_blob(const std::string& repo, const RemoteFile& file) const;
  // The blobs of `files` under their names; the folder is whole once this returns.
  Status link(const std::string& repo, const std::string& commit, const std::vector<RemoteFile>& files) const;
  // `revision` stands for `commit` from now on, and `reader` may have the repository while the hub cannot be asked.
  Status note(const std::string& repo, const std::string& revision, const std::string& commit,
              const std::string& reader);

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path repo_folder(const std::string& repo) const { return root_ / repo; }
  std::int64_t used_bytes() const;
  bool evict_one(const std::string& but) const;
  void give_back(std::int64_t num_bytes);

  const std::filesystem::path root_;
  const std::int64_t quota_bytes_;
  std::mutex mutex_;                 // of what follows, and of looking and evicting within this process
  std::int64_t reserved_bytes_ = 0;  // of downloads that run
};

class SnapshotCache::Room {
 public:
  Room(SnapshotCache& cache, std::int64_t num_bytes) : cache_(&cache), num_bytes_(num_bytes) {}
  ~Room() {
    if (cache_ != nullptr) cache_->give_back(num_bytes_);
  }
  Room(Room&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)), num_bytes_(other.num_bytes_) {}
  Room& operator=(Room&&) = delete;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

 private:
  SnapshotCache* cache_;
  std::int64_t num_bytes_;
};

}  // namespace shoal
