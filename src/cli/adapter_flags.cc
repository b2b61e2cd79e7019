#include "cli/adapter_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/options.h"
#include "hub/hub_source.h"
#include "hub/s3_source.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

// The first that is set and not empty.
std::string from_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

CLI::Validator source_name() { return CLI::IsMember({"local", "hub", "s3"}); }

// As huggingface_hub finds it.
fs::path cache_folder(const std::string& given) {
  if (!given.empty()) return given;
  if (const std::string cache = from_environment({"HF_HUB_CACHE"}); !cache.empty()) return cache;
  if (const std::string home = from_environment({"HF_HOME"}); !home.empty()) return fs::path(home) / "hub";
  fs::path caches = from_environment({"XDG_CACHE_HOME"});
  if (caches.empty()) caches = fs::path(from_environment({"HOME"})) / ".cache";
  return caches / "huggingface" / "hub";
}

std::string without_end_slash(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  return url;
}

S3Options s3_options(const AdapterSourceFlags& flags, RemoteOptions remote) {
  S3Options options;
  options.remote = std::move(remote);
  options.remote.allowed = flags.s3_adapters;
  options.endpoint = without_end_slash(flags.s3_endpoint);
  const std::string r2_account = from_environment({"R2_ACCOUNT_ID"});
  if (options.endpoint.empty() && !r2_account.empty()) {
    options.endpoint = fmt::format("https://{}.r2.cloudflarestorage.com", r2_account);
  }
  options.bucket = flags.s3_bucket;
  options.folder = flags.s3_folder;
  options.credentials.access_key_id = from_environment({"AWS_ACCESS_KEY_ID"});
  options.credentials.secret_access_key = from_environment({"AWS_SECRET_ACCESS_KEY"});
  options.credentials.session_token = from_environment({"AWS_SESSION_TOKEN"});
  const std::string region = from_environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (!region.empty()) options.credentials.region = region;
  return options;
}

}  // namespace

void AdapterSourceFlags::add_to(CLI::App& command) {
  command
      .add_option("--adapter-source", adapter_source, "where adapters come from: local (below --adapter-dir), hub, s3")
      ->envname("ADAPTER_SOURCE")
      ->check(source_name())
      ->capture_default_str();
  command
      .add_option("--default-adapter-source", default_source,
                  "the same, of requests that do not say (default: that of --adapter-source)")
      ->envname("DEFAULT_ADAPTER_SOURCE")
      ->check(source_name());
  command.add_option("--preloaded-adapter-source", preloaded_source, "the same, of --preloaded-adapter-ids")
      ->envname("PRELOADED_ADAPTER_SOURCE")
      ->check(source_name());
  command
      .add_option("--allow-adapter-source", allowed_sources,
                  "a source that requests may name beside local and the three above; may be repeated")
      ->envname("ALLOW_ADAPTER_SOURCE")
      ->allow_extra_args(false)
      ->check(source_name());
  command.add_option("--huggingface-hub-cache", cache_dir, "folder of fetched adapters (default: Hugging Face's)")
      ->envname("HUGGINGFACE_HUB_CACHE");
  command
      .add_option("--adapter-download-quota", download_quota,
                  "bytes that downloads may take there; the longest unused make place")
      ->envname("ADAPTER_DOWNLOAD_QUOTA")
      ->capture_default_str();
  command
      .add_option("--hub-adapters", hub_adapters,
                  "pattern of hub adapters that may be fetched, as 'org/*'; may be repeated (default: any)")
      ->envname("HUB_ADAPTERS")
      ->allow_extra_args(false)
      ->check(some_text());
  command.add_option("--hub-endpoint", hub_endpoint, "URL of the hub")
      ->envname("HF_ENDPOINT")
      ->check(some_text())
      ->capture_default_str();
  add_switch(
      command, "--hub-token-for-all", hub_token_for_all,
      "requests without an api_token read the hub with this server's (HF_TOKEN); else --preloaded-adapter-ids alone")
      ->envname("LORAX_USE_GLOBAL_HF_TOKEN");
  command.add_flag("--offline", offline, "adapters of the hub and S3 come from the cache alone")
      ->envname("HF_HUB_OFFLINE");
  command
      .add_option("--hub-download-timeout", stall_limit_s,
                  "seconds without a byte after which a download is tried again")
      ->envname("HF_HUB_DOWNLOAD_TIMEOUT")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  command
      .add_option("--s3-adapters", s3_adapters,
                  "pattern of bucket/folder that may be fetched; may be repeated (default: all of --s3-bucket)")
      ->envname("S3_ADAPTERS")
      ->allow_extra_args(false)
      ->check(some_text());
  command.add_option("--s3-endpoint-url", s3_endpoint, "URL of what speaks S3's protocol (default: AWS)")
      ->envname("S3_ENDPOINT_URL");
  command.add_option("--s3-bucket", s3_bucket, "bucket of adapters that are named without one")
      ->envname("PREDIBASE_MODEL_BUCKET");
  command.add_option("--s3-folder", s3_folder, "folder in that bucket")->envname("PREDIBASE_MODEL_FOLDER");
}

std::vector<std::string> AdapterSourceFlags::served() const {
  std::vector<std::string> names = allowed_sources;
  names.insert(names.end(), {"local", adapter_source, source_of_requests(), source_of_preloaded()});
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

ServedSources::ServedSources(const AdapterSourceFlags& flags, AdapterSource& local, std::int64_t max_file_bytes,
                             const std::vector<std::string>& preloaded_ids)
    : sources_(local) {
  const std::vector<std::string> served = flags.served();
  const auto serves = [&](const char* name) { return std::find(served.begin(), served.end(), name) != served.end(); };
  if (!serves("hub") && !serves("s3")) return;
  cache_ = std::make_unique<SnapshotCache>(cache_folder(flags.cache_dir),
                                           parse_bytes("--adapter-download-quota", flags.download_quota));
  HttpOptions http;
  http.user_agent = "shoal/" SHOAL_VERSION;
  http.ca_file = from_environment({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  http.stall_limit = std::chrono::seconds(flags.stall_limit_s);
  client_ = std::make_unique<HttpClient>(http, stop_.get_token());
  RemoteOptions remote;
  remote.max_file_bytes = max_file_bytes;
  remote.offline = flags.offline;
  if (serves("hub")) {
    HubOptions hub{.remote = remote,
                   .endpoint = without_end_slash(flags.hub_endpoint),
                   .token = from_environment({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"}),
                   .token_ids = flags.source_of_preloaded() == "hub" ? preloaded_ids : std::vector<std::string>(),
                   .token_for_all = flags.hub_token_for_all};
    hub.remote.allowed = flags.hub_adapters;
    spdlog::info("adapters of the hub: {}, from {}{}, kept in {}",
                 hub.remote.allowed.empty() ? "any" : fmt::format("{}", fmt::join(hub.remote.allowed, ", ")),
                 hub.endpoint,
                 hub.token.empty() || !hub.token_for_all ? "" : "; requests without a token use this server's",
                 cache_->root().string());
    sources_.add_remote("hub", std::make_unique<HubSource>(hub, *cache_, *client_));
  }
  if (serves("s3")) {
    sources_.add_remote("s3", std::make_unique<S3Source>(s3_options(flags, remote), *cache_, *client_));
  }
}

}  // namespace shoal
