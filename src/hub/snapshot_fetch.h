// fetch_snapshot: brings the files of one adapter into the cache. What HubSource and S3Source share. Used by them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/result.h"
#include "hub/download.h"
#include "hub/http_client.h"
#include "hub/snapshot_cache.h"

namespace shoal {

// Of every remote source.
struct RemoteOptions {
  std::vector<std::string> allowed;  // shell patterns that an id must match one of; none: see the source
  std::int64_t max_file_bytes = std::int64_t{2} << 30;  // of weights; what is longer is refused before it is fetched
  std::chrono::seconds fetch_limit{1800};               // of one fetch, waiting and retries included
  bool offline = false;                                 // only what is in the cache
};

// The two files of an adapter; nothing else is ever asked for, pickled weights (.bin) least of all.
const std::vector<std::string>& adapter_file_names();

struct SnapshotPlan {
  std::string what;      // for messages: "adapter 'org/name'"
  std::string repo;      // names the folder
  std::string revision;  // as it was asked for
  std::string commit;    // as it was resolved
  std::string reader;    // who asked, see SnapshotCache::note
  std::vector<RemoteFile> files;
  std::chrono::steady_clock::time_point deadline;
  // One GET of a file, redirects followed.
  std::function<HttpReply(const RemoteFile&, const std::vector<std::string>& headers, const DownloadJob::Sink&)> get;
  std::function<Error(const HttpReply&)> explain;
};

// The folder of the snapshot. The source was asked for its files just now, with the rights of `reader`.
Result<std::filesystem::path> fetch_snapshot(SnapshotCache& cache, const HttpClient& client, const SnapshotPlan& plan);

// kAdapterInvalid where a file is longer than an adapter may be.
Status check_lengths(const SnapshotPlan& plan, const RemoteOptions& options);

// What a reader is known by in the cache: never the token itself.
std::string reader_name(const std::string& origin, const std::string& secret);
// Whether one of the shell patterns matches all of `id`.
bool matches_any(const std::vector<std::string>& patterns, const std::string& id);
// A whole number that is not negative; none for anything else.
std::optional<std::int64_t> parse_length(std::string_view text);
// For what the server did not answer, or answered with 429 and 5xx to the last.
Error source_unavailable(const std::string& what, const std::string& source, const HttpReply& reply);

}  // namespace shoal
