#include "hub/s3_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "hub/sha256.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxFolderBytes = 512;
constexpr const char* kRevision = "main";  // buckets have none; the cache wants a name
constexpr std::size_t kCommitDigits = 40;

// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
bool is_bucket(const std::string& bucket) {
  return bucket.size() >= 3 && bucket.size() <= 63 && bucket.front() != '.' && bucket.front() != '-' &&
         bucket.find("..") == std::string::npos && std::all_of(bucket.begin(), bucket.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
         });
}

// Steps like "." would be taken out on the way, and the signature be of another path.
bool is_folder(const std::string& folder) {
  if (folder.empty() || folder.size() > kMaxFolderBytes) return false;
  std::size_t begin = 0;
  while (begin <= folder.size()) {
    const std::size_t end = std::min(folder.find('/', begin), folder.size());
    const std::string step = folder.substr(begin, end - begin);
    if (step.empty() || step == "." || step == "..") return false;
    begin = end + 1;
  }
  return std::all_of(folder.begin(), folder.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20; });
}

std::string without_end_slashes(std::string text) {
  while (!text.empty() && text.back() == '/') text.pop_back();
  return text;
}

std::string join(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + '/' + name;
}

}  // namespace

Result<S3Place> parse_s3_id(const std::string& id, const S3Options& options) {
  constexpr std::string_view kScheme = "s3://";
  S3Place place;
  const bool has_scheme = id.starts_with(kScheme);
  if (!has_scheme && !options.bucket.empty()) {
    place = {.bucket = options.bucket, .folder = join(without_end_slashes(options.folder), without_end_slashes(id))};
  } else {
    const std::string path = has_scheme ? id.substr(kScheme.size()) : id;
    const std::size_t slash = std::min(path.find('/'), path.size());
    place = {.bucket = path.substr(0, slash),
             .folder = slash == path.size() ? "" : without_end_slashes(path.substr(slash + 1))};
  }
  if (!is_bucket(place.bucket) || !is_folder(place.folder)) {
    return Error{ErrorCode::kAdapterInvalid,
                 fmt::format("adapter '{}' names no folder of a bucket, expected {}", id,
                             options.bucket.empty() ? "s3://bucket/folder" : "s3://bucket/folder, or a folder")};
  }
  return place;
}

S3Source::S3Source(S3Options options, SnapshotCache& cache, const HttpClient& client)
    : options_(std::move(options)), cache_(cache), client_(client) {
  if (!options_.endpoint.empty() && !origin_of(options_.endpoint)) {
    throw StartError(fmt::format("the endpoint of S3 is {}, expected an http or https URL", options_.endpoint));
  }
  if (options_.bucket.empty() && options_.remote.allowed.empty()) {
    throw StartError("adapters from S3 need a bucket, or patterns of what requests may read");
  }
}

AdapterVersion S3Source::version(const AdapterKey& key) {
  return parse_s3_id(key.id, options_).ok() ? AdapterVersion{.signature = 1} : AdapterVersion();
}

// The credentials may reach far more than adapters.
Status S3Source::check_allowed(const std::string& id, const S3Place& place) const {
  const std::string path = place.bucket + '/' + place.folder;
  const std::string own = join(join(options_.bucket, without_end_slashes(options_.folder)), "");
  const bool in_bucket = !options_.bucket.empty() && path.starts_with(own);
  if (options_.remote.allowed.empty() ? in_bucket : matches_any(options_.remote.allowed, path)) return Ok{};
  return Error{ErrorCode::kAdapterInvalid,
               fmt::format("adapter '{}' is none of those that this server takes from S3", id)};
}

std::string S3Source::url_of(const S3Place& place, const std::string& name) const {
  const std::string key = escape_url(join(place.folder, name), Slashes::kKeep);
  if (!options_.endpoint.empty()) return fmt::format("{}/{}/{}", options_.endpoint, place.bucket, key);
  const std::string host = fmt::format("s3.{}.amazonaws.com", options_.credentials.region);
  // Certificates of AWS cover one step before the host's name.
  const bool one_step = place.bucket.find('.') == std::string::npos;
  return one_step ? fmt::format("https://{}.{}/{}", place.bucket, host, key)
                  : fmt::format("https://{}/{}/{}", host, place.bucket, key);
}

// One fetch.
struct S3Source::Ask {
  S3Place place;
  std::string what;
  std::string repo;
  std::string reader;
  std::chrono::steady_clock::time_point deadline;
};

Result<std::filesystem::path> S3Source::fetch(const AdapterKey& key) {
  const Result<S3Place> place = parse_s3_id(key.id, options_);
  if (!place.ok()) return place.error();
  const Status allowed = check_allowed(key.id, place.value());
  if (!allowed.ok()) return allowed.error();
  const std::string address = url_of(place.value(), "");
  const Ask ask{.place = place.value(),
                .what = fmt::format("adapter '{}'", key.id),
                .repo = "s3--" + sha256_of(address).substr(0, kCommitDigits),
                .reader = reader_name(address, options_.credentials.access_key_id),
                .deadline = std::chrono::steady_clock::now() + options_.remote.fetch_limit};
  if (options_.remote.offline) {
    return from_cache(ask,
                      {ErrorCode::kAdapterNotFound, ask.what + " is not in the cache, and this server is offline"});
  }

  SnapshotPlan plan{.what = ask.what,
                    .repo = ask.repo,
                    .revision = kRevision,
                    .commit = {},
                    .reader = ask.reader,
                    .files = {},
                    .deadline = ask.deadline,
                    .get = {},
                    .explain = [&](const HttpReply& reply) { return explain(ask, reply); }};
  std::map<std::string, std::string> etags;  // as they were sent
  for (const std::string& name : adapter_file_names()) {
    const HttpReply reply = client_.send_with_retries(call_of(ask, HttpMethod::kHead, name));
    if (reply.worth_retry) return from_cache(ask, explain(ask, reply));
    if (!reply.ok()) return explain(ask, reply);
    const auto length = parse_length(reply.header("content-length"));
    etags[name] = reply.header("etag");
    if (!length || etags[name].empty()) {
      return Error{ErrorCode::kUnavailable,
                   fmt::format("{}: the bucket tells no length or ETag of {}", ask.what, name)};
    }
    const std::string etag = sha256_of(etags[name]).substr(0, kCommitDigits);
    plan.files.push_back({.name = name, .etag = etag, .num_bytes = *length, .sha256 = {}});
    plan.commit = sha256_of(plan.commit + etag).substr(0, kCommitDigits);
  }
  const Status fits = check_lengths(plan, options_.remote);
  if (!fits.ok()) return fits.error();
  plan.get = [&](const RemoteFile& file, const std::vector<std::string>& headers, const DownloadJob::Sink& sink) {
    HttpCall call = call_of(ask, HttpMethod::kGet, file.name);
    call.headers.insert(call.headers.end(), headers.begin(), headers.end());
    call.headers.push_back("If-Match: " + etags[file.name]);  // what was replaced meanwhile is not mixed with the new
    call.sink = sink;
    return client_.send(call);
  };
  return fetch_snapshot(cache_, client_, plan);
}

HttpCall S3Source::call_of(const Ask& ask, HttpMethod method, const std::string& name) const {
  return {.method = method,
          .url = url_of(ask.place, name),
          .headers = {"Accept-Encoding: identity"},
          .bearer = {},
          .signer = &options_.credentials,
          .deadline = ask.deadline};
}

Result<std::filesystem::path> S3Source::from_cache(const Ask& ask, Error error) {
  const auto commit = cache_.known_commit(ask.repo, kRevision);
  const auto folder = commit ? cache_.find_known(ask.repo, *commit, adapter_file_names(), ask.reader) : std::nullopt;
  if (folder) return *folder;
  return error;
}

Error S3Source::explain(const Ask& ask, const HttpReply& reply) const {
  const std::string& what = ask.what;
  if (!reply.trouble.empty() || reply.status >= 500 || reply.status == 429 || reply.status == 408) {
    return source_unavailable(what, "its bucket", reply);
  }
  const std::string_view region = reply.header("x-amz-bucket-region");
  if ((reply.status == 301 || reply.status == 400) && !region.empty() && region != options_.credentials.region) {
    return {ErrorCode::kAdapterInvalid, fmt::format("{}: its bucket is in the region {}, this server asks in {}", what,
                                                    region, options_.credentials.region)};
  }
  switch (reply.status) {
    case 404:
      return {ErrorCode::kAdapterNotFound,
              fmt::format("{} not found: its folder lacks adapter_config.json or adapter_model.safetensors (pickled "
                          "weights, .bin, are never read)",
                          what)};
    case 401:
    case 403:
      return {ErrorCode::kAdapterInvalid, fmt::format("{}: its bucket refuses this server's credentials", what)};
    case 412:
      return {ErrorCode::kUnavailable, fmt::format("{}: its files were replaced while they were fetched", what)};
    default:
      return {ErrorCode::kUnavailable, fmt::format("{}: its bucket answered {}", what, reply.status)};
  }
}

}  // namespace shoal
