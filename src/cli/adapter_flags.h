// AdapterSourceFlags: where adapters may come from, as flags and environment names of LoRAX and Hugging Face say.
// ServedSources: what they make. Used by `serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "hub/adapter_sources.h"
#include "hub/http_client.h"
#include "hub/snapshot_cache.h"

namespace shoal {

struct AdapterSourceFlags {
  std::string adapter_source = "local";  // of adapters that are named without one
  std::string default_source;            // of requests; "": the above
  std::string preloaded_source;          // "": the first
  std::vector<std::string> allowed_sources;
  std::string cache_dir;  // "": Hugging Face's
  std::string download_quota = "20GiB";
  std::vector<std::string> hub_adapters;
  std::string hub_endpoint = "https://huggingface.co";
  bool hub_token_for_all = false;
  bool offline = false;
  int stall_limit_s = 30;
  std::vector<std::string> s3_adapters;
  std::string s3_endpoint;
  std::string s3_bucket;
  std::string s3_folder;

  void add_to(CLI::App& command);
  std::string source_of_requests() const { return default_source.empty() ? adapter_source : default_source; }
  std::string source_of_preloaded() const { return preloaded_source.empty() ? adapter_source : preloaded_source; }
  // "local", and all that the flags above name; sorted.
  std::vector<std::string> served() const;
};

class ServedSources {
 public:
  // `local` outlives this. Secrets come from the environment alone. `max_file_bytes`: of one adapter's weights.
  // StartError where a remote source cannot be had.
  // Requests without a token read those of `preloaded_ids` with this server's.
  ServedSources(const AdapterSourceFlags& flags, AdapterSource& local, std::int64_t max_file_bytes,
                const std::vector<std::string>& preloaded_ids);
  ServedSources(const ServedSources&) = delete;
  ServedSources& operator=(const ServedSources&) = delete;

  AdapterSource& source() { return sources_; }
  bool has_remote() const { return client_ != nullptr; }
  // Ends downloads that run; none begins after it.
  void stop() { stop_.request_stop(); }

 private:
  std::stop_source stop_;
  std::unique_ptr<SnapshotCache> cache_;
  std::unique_ptr<HttpClient> client_;
  AdapterSources sources_;
};

}  // namespace shoal
