// download: one file of known length over HTTP, resumed where an earlier attempt ended. Used by SnapshotFetcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "hub/http_client.h"

namespace shoal {

struct DownloadJob {
  using Sink = std::function<bool(const HttpReply&, std::span<const char>)>;

  std::string what;  // for messages: "adapter 'org/name': FILE"
  std::filesystem::path file;
  std::int64_t num_bytes = 0;
  std::string sha256;  // hexadecimal digits; "": not known
  std::chrono::steady_clock::time_point deadline;
  // One GET of the file with these headers more; its 2xx body goes to the sink.
  std::function<HttpReply(const std::vector<std::string>& headers, const Sink& sink)> get;
  std::function<Error(const HttpReply&)> explain;  // of a reply that is no success
};

// Whatever `file` holds is taken for the beginning. It is whole, and has that digest, when this is Ok; else it keeps
// what came. Nobody else writes to it meanwhile. Logs progress every few seconds.
Status download(const HttpClient& client, const DownloadJob& job);

}  // namespace shoal
