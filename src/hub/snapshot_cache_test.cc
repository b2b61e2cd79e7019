#include "hub/snapshot_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "core/test_patience.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

const std::string kRepo = "models--org--name";
const std::string kCommit(40, 'a');

class SnapshotCacheTest : public testing::Test {
 protected:
  SnapshotCacheTest() {
    root_ = fs::temp_directory_path() / ("shoal_snapshot_cache_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  ~SnapshotCacheTest() override { fs::remove_all(root_); }

  static RemoteFile file_of(const std::string& name, std::int64_t num_bytes) {
    return {.name = name, .etag = "etag-" + name, .num_bytes = num_bytes, .sha256 = {}};
  }

  // As a fetch does it, of files that take `num_bytes` each.
  Status add(SnapshotCache& cache, const std::string& repo, std::int64_t num_bytes, const std::string& reader) {
    const std::vector<RemoteFile> files = {file_of("a.json", num_bytes), file_of("b.safetensors", num_bytes)};
    for (const RemoteFile& file : files) {
      const auto room = cache.reserve(repo, file, client_);
      if (!room.ok()) return room.error();
      std::ofstream(cache.incomplete_file(repo, file)) << std::string(static_cast<std::size_t>(num_bytes), 'x');
      const Status finished = cache.finish_blob(repo, file);
      if (!finished.ok()) return finished;
    }
    const Status linked = cache.link(repo, kCommit, files);
    if (!linked.ok()) return linked;
    return cache.note(repo, "main", kCommit, reader);
  }

  bool has(SnapshotCache& cache, const std::string& repo, std::int64_t num_bytes) {
    return cache.find(repo, kCommit, {file_of("a.json", num_bytes), file_of("b.safetensors", num_bytes)}).has_value();
  }

  bool readable(SnapshotCache& cache, const std::string& reader) {
    return cache.find_known(kRepo, kCommit, {"a.json", "b.safetensors"}, reader).has_value();
  }

  void unused_for(const std::string& repo, std::chrono::minutes age) {
    fs::last_write_time(root_ / repo / ".shoal", fs::file_time_type::clock::now() - age);
  }

  fs::path root_;
  HttpClient client_{{}, {}};
};

TEST_F(SnapshotCacheTest, HasTheLayoutOfHuggingFace) {
  SnapshotCache cache(root_, 1000);
  EXPECT_FALSE(fs::exists(root_)) << "nothing is made before it is needed";
  ASSERT_TRUE(add(cache, kRepo, 10, "public").ok());
  const fs::path link = root_ / kRepo / "snapshots" / kCommit / "a.json";
  EXPECT_EQ(fs::read_symlink(link), "../../blobs/etag-a.json");
  EXPECT_EQ(fs::file_size(link), 10U);
  std::ifstream ref(root_ / kRepo / "refs" / "main");
  std::string commit;
  std::getline(ref, commit);
  EXPECT_EQ(commit, kCommit);
  EXPECT_EQ(cache.known_commit(kRepo, "main"), kCommit);
  EXPECT_EQ(cache.known_commit(kRepo, std::string(40, 'b')), std::string(40, 'b'));
  EXPECT_FALSE(cache.known_commit(kRepo, "other"));
  EXPECT_TRUE(has(cache, kRepo, 10));
}

TEST_F(SnapshotCacheTest, FindsNothingThatIsNotWhole) {
  SnapshotCache cache(root_, 1000);
  ASSERT_TRUE(add(cache, kRepo, 10, "public").ok());
  EXPECT_FALSE(has(cache, kRepo, 11)) << "another length";
  std::vector<RemoteFile> files = {file_of("a.json", 10)};
  files[0].etag = "newer";
  EXPECT_FALSE(cache.find(kRepo, kCommit, files)) << "another blob of the same length";
  EXPECT_FALSE(cache.find(kRepo, std::string(40, 'b'), {file_of("a.json", 10)}));
  fs::remove(root_ / kRepo / "blobs" / "etag-b.safetensors");
  EXPECT_FALSE(has(cache, kRepo, 10)) << "a link that leads nowhere";
  EXPECT_FALSE(readable(cache, "public"));
}

TEST_F(SnapshotCacheTest, AnswersWithoutTheHubThoseAloneWhoWereAllowedBefore) {
  SnapshotCache cache(root_, 1000);
  ASSERT_TRUE(add(cache, kRepo, 10, "reader-1").ok());
  EXPECT_TRUE(readable(cache, "reader-1"));
  EXPECT_FALSE(readable(cache, "public"));
  EXPECT_FALSE(readable(cache, "reader-2"));
  EXPECT_FALSE(readable(cache, "made")) << "a line of the file that is no reader";
  ASSERT_TRUE(cache.note(kRepo, "main", kCommit, "reader-2").ok());
  EXPECT_TRUE(readable(cache, "reader-1") && readable(cache, "reader-2"));
}

TEST_F(SnapshotCacheTest, WhatAnotherProgramFetchedIsForAll) {
  SnapshotCache cache(root_, 1000);
  fs::create_directories(root_ / kRepo / "snapshots" / kCommit);
  for (const char* name : {"a.json", "b.safetensors"}) {
    std::ofstream(root_ / kRepo / "snapshots" / kCommit / name) << std::string(10, 'x');
  }
  EXPECT_TRUE(readable(cache, "public"));
  EXPECT_TRUE(has(cache, kRepo, 10)) << "files in place of links";
}

TEST_F(SnapshotCacheTest, TheLongestUnusedMakesPlace) {
  SnapshotCache cache(root_, 60);
  for (const char* repo : {"models--a--1", "models--a--2", "models--a--3"}) {
    ASSERT_TRUE(add(cache, repo, 10, "public").ok());
  }
  EXPECT_FALSE(add(cache, "models--a--4", 10, "public").ok()) << "all were used just now";
  unused_for("models--a--1", std::chrono::minutes(20));
  unused_for("models--a--2", std::chrono::minutes(30));
  ASSERT_TRUE(add(cache, "models--a--4", 10, "public").ok());
  EXPECT_TRUE(has(cache, "models--a--1", 10) && has(cache, "models--a--3", 10) && has(cache, "models--a--4", 10));
  EXPECT_FALSE(fs::exists(root_ / "models--a--2"));
  // A look counts as use.
  EXPECT_FALSE(add(cache, "models--a--5", 10, "public").ok());
  const auto refused = cache.reserve("models--a--6", file_of("huge", 1000), client_);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
}

TEST_F(SnapshotCacheTest, WhatAnotherProgramMadeIsNeverEvicted) {
  fs::create_directories(root_ / kRepo / "blobs");
  SnapshotCache cache(root_, 20);
  ASSERT_TRUE(add(cache, kRepo, 10, "public").ok());
  unused_for(kRepo, std::chrono::minutes(60));
  EXPECT_FALSE(add(cache, "models--a--1", 10, "public").ok());
  EXPECT_TRUE(has(cache, kRepo, 10));
}

TEST_F(SnapshotCacheTest, RoomIsTakenWhileADownloadRuns) {
  SnapshotCache cache(root_, 100);
  {
    const auto room = cache.reserve(kRepo, file_of("a", 80), client_);
    ASSERT_TRUE(room.ok());
    EXPECT_FALSE(cache.reserve(kRepo, file_of("b", 30), client_).ok());
    EXPECT_TRUE(cache.reserve(kRepo, file_of("b", 20), client_).ok());
  }
  EXPECT_TRUE(cache.reserve(kRepo, file_of("b", 100), client_).ok());
}

TEST_F(SnapshotCacheTest, ALockIsHeldByOneAtATime) {
  using std::chrono::steady_clock;
  const fs::path file = root_ / ".locks" / "x.lock";
  auto held = FileLock::take(file, client_, steady_clock::now());
  ASSERT_TRUE(held);
  EXPECT_FALSE(FileLock::take(file, client_, steady_clock::now())) << "of this process too";
  std::jthread waiting([&] { EXPECT_TRUE(FileLock::take(file, client_, steady_clock::now() + test::kPatience)); });
  held.reset();
}

TEST_F(SnapshotCacheTest, AStopEndsTheWaitForALock) {
  std::stop_source stop;
  const HttpClient stopping({}, stop.get_token());
  const fs::path file = root_ / ".locks" / "x.lock";
  const auto held = FileLock::take(file, client_, std::chrono::steady_clock::now());
  std::jthread waiting(
      [&] { EXPECT_FALSE(FileLock::take(file, stopping, std::chrono::steady_clock::time_point::max())); });
  stop.request_stop();
}

TEST(FileName, IsOneStepOfAPath) {
  for (const char* good : {"abc", "a.b", "A-1_b", "0"}) EXPECT_TRUE(is_file_name(good)) << good;
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "ä"})
    EXPECT_FALSE(is_file_name(bad)) << bad;
  EXPECT_FALSE(is_file_name(std::string("a\0b", 3)));
  EXPECT_TRUE(is_file_name(std::string(128, 'a')));
  EXPECT_FALSE(is_file_name(std::string(129, 'a')));
}

}  // namespace
}  // namespace shoal
