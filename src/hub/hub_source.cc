#include "hub/hub_source.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace shoal {
namespace {

constexpr int kMaxRedirects = 5;
constexpr std::size_t kMaxNameBytes = 96;

bool is_redirect(const HttpReply& reply) {
  return reply.trouble.empty() && reply.status >= 300 && reply.status < 400 && !reply.header("location").empty();
}

// As the hub takes them for organisations and repositories.
bool is_hub_name(const std::string& name) {
  return is_file_name(name) && name.size() <= kMaxNameBytes && name.front() != '-' && name.back() != '-' &&
         name.back() != '.' && name.find("--") == std::string::npos && name.find("..") == std::string::npos;
}

// Branches and tags may have several steps.
bool is_revision(const std::string& revision) {
  if (revision.empty() || revision.size() > kMaxNameBytes) return false;
  std::size_t begin = 0;
  while (begin <= revision.size()) {
    const std::size_t end = std::min(revision.find('/', begin), revision.size());
    if (!is_file_name(revision.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

bool is_hexadecimal(std::string_view text, std::size_t num_digits) {
  return text.size() == num_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// What may stand in a header.
bool is_token(const std::string& token) {
  return token.size() <= 1024 && std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// `W/"abc"` and `"abc"` are abc.
std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

Error unusable(const std::string& what, std::string_view why) {
  return {ErrorCode::kUnavailable, fmt::format("{}: the hub's answer {}", what, why)};
}

}  // namespace

std::string HubId::folder() const {
  const std::size_t slash = repo.find('/');
  return fmt::format("models--{}--{}", repo.substr(0, slash), repo.substr(slash + 1));
}

Result<HubId> parse_hub_id(const std::string& id) {
  HubId parsed;
  const std::size_t mark = id.find('@');
  parsed.repo = id.substr(0, mark);
  if (mark != std::string::npos) parsed.revision = id.substr(mark + 1);
  const std::size_t slash = parsed.repo.find('/');
  const bool named = slash != std::string::npos && is_hub_name(parsed.repo.substr(0, slash)) &&
                     is_hub_name(parsed.repo.substr(slash + 1));
  if (!named || !is_revision(parsed.revision)) {
    return Error{
        ErrorCode::kAdapterInvalid,
        fmt::format("adapter '{}' names no repository of the hub, expected org/name or org/name@revision", id)};
  }
  return parsed;
}

// One fetch.
struct HubSource::Ask {
  HubId id;
  std::string what;
  std::string token;
  std::string reader;
  std::chrono::steady_clock::time_point deadline;
};

HubSource::HubSource(HubOptions options, SnapshotCache& cache, const HttpClient& client)
    : options_(std::move(options)), cache_(cache), client_(client) {
  const std::optional<std::string> origin = origin_of(options_.endpoint);
  if (!origin)
    throw StartError(fmt::format("the hub's endpoint is {}, expected an http or https URL", options_.endpoint));
  origin_ = *origin;
  if (!is_token(options_.token)) throw StartError("the hub's token holds characters that no token has");
}

AdapterVersion HubSource::version(const AdapterKey& key) {
  // What a revision stands for is looked up by fetch(), not for each request.
  return parse_hub_id(key.id).ok() ? AdapterVersion{.signature = 1} : AdapterVersion();
}

std::string HubSource::own_token(const std::string& id) const {
  const auto& ids = options_.token_ids;
  const bool lent = options_.token_for_all || std::find(ids.begin(), ids.end(), id) != ids.end();
  return lent ? options_.token : "";
}

Result<std::filesystem::path> HubSource::fetch(const AdapterKey& key) {
  const Result<HubId> id = parse_hub_id(key.id);
  if (!id.ok()) return id.error();
  if (!options_.remote.allowed.empty() && !matches_any(options_.remote.allowed, id.value().repo)) {
    return Error{ErrorCode::kAdapterInvalid, fmt::format("adapter '{}' is none of those that this server takes from "
                                                         "the hub",
                                                         key.id)};
  }
  const std::string token = key.api_token.empty() ? own_token(key.id) : key.api_token;
  if (!is_token(token)) {
    return Error{ErrorCode::kAdapterInvalid, fmt::format("adapter '{}': the `api_token` is no token", key.id)};
  }
  const Ask ask{.id = id.value(),
                .what = fmt::format("adapter '{}'", key.id),
                .token = token,
                .reader = reader_name(origin_, token),
                .deadline = std::chrono::steady_clock::now() + options_.remote.fetch_limit};
  if (options_.remote.offline) return from_cache(ask, "this server is offline");

  SnapshotPlan plan{.what = ask.what,
                    .repo = ask.id.folder(),
                    .revision = ask.id.revision,
                    .commit = {},
                    .reader = ask.reader,
                    .files = {},
                    .deadline = ask.deadline,
                    .get = {},
                    .explain = [&](const HttpReply& reply) { return explain(ask, reply); }};
  for (const std::string& name : adapter_file_names()) {
    // The commit of the first file: both are of one state of the repository.
    const HttpReply reply = head(ask, plan.commit.empty() ? ask.id.revision : plan.commit, name);
    if (reply.worth_retry) return from_cache(ask, explain(ask, reply).message);
    if (!reply.trouble.empty() || reply.status >= 400) return explain(ask, reply);
    const std::string commit(reply.header("x-repo-commit"));
    if (!is_hexadecimal(commit, 40)) return unusable(ask.what, "names no commit (X-Repo-Commit)");
    if (plan.commit.empty()) plan.commit = commit;
    Result<RemoteFile> file = describe(ask, reply, name);
    if (!file.ok()) return file.error();
    plan.files.push_back(std::move(file.value()));
  }
  const Status fits = check_lengths(plan, options_.remote);
  if (!fits.ok()) return fits.error();
  plan.get = [&](const RemoteFile& file, const std::vector<std::string>& headers, const DownloadJob::Sink& sink) {
    return get(ask, plan.commit, file, headers, sink);
  };
  return fetch_snapshot(cache_, client_, plan);
}

std::string HubSource::url_of(const Ask& ask, const std::string& revision, const std::string& name) const {
  return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, escape_url(ask.id.repo, Slashes::kKeep),
                     escape_url(revision, Slashes::kEscape), escape_url(name, Slashes::kKeep));
}

// Follows what leads elsewhere on the hub, as a repository's new name does. Where the file itself lies elsewhere, the
// hub's reply tells all about it.
HttpReply HubSource::head(const Ask& ask, const std::string& revision, const std::string& name) const {
  HttpCall call{.method = HttpMethod::kHead,
                .url = url_of(ask, revision, name),
                .headers = {"Accept-Encoding: identity"},
                .bearer = ask.token,
                .deadline = ask.deadline};
  for (int hops = 0;; ++hops) {
    HttpReply reply = client_.send_with_retries(call);
    if (!is_redirect(reply) || hops == kMaxRedirects) return reply;
    const auto next = resolve_redirect(call.url, std::string(reply.header("location")));
    if (!next || origin_of(*next) != origin_ || !reply.header("x-linked-etag").empty()) return reply;
    call.url = *next;
  }
}

HttpReply HubSource::get(const Ask& ask, const std::string& commit, const RemoteFile& file,
                         const std::vector<std::string>& headers, const DownloadJob::Sink& sink) const {
  HttpCall call{
      .url = url_of(ask, commit, file.name), .headers = headers, .bearer = {}, .deadline = ask.deadline, .sink = sink};
  call.headers.emplace_back("Accept-Encoding: identity");
  for (int hops = 0;; ++hops) {
    // The token is for the hub: whoever else stores the file has an address that was signed by the hub.
    call.bearer = origin_of(call.url) == origin_ ? ask.token : "";
    HttpReply reply = client_.send(call);
    if (!is_redirect(reply)) return reply;
    const auto next = resolve_redirect(call.url, std::string(reply.header("location")));
    if (!next || hops == kMaxRedirects) {
      reply.trouble = next ? "too many redirects" : "a redirect that leads to no address that may be followed";
      return reply;
    }
    call.url = *next;
  }
}

Result<RemoteFile> HubSource::describe(const Ask& ask, const HttpReply& reply, const std::string& name) const {
  const bool elsewhere = reply.status >= 300;
  const std::string_view linked_etag = reply.header("x-linked-etag");
  const std::string_view linked_size = reply.header("x-linked-size");
  if (elsewhere && linked_size.empty()) return unusable(ask.what, fmt::format("tells no length of {}", name));
  RemoteFile file;
  file.name = name;
  file.etag = plain_etag(linked_etag.empty() ? reply.header("etag") : linked_etag);
  const auto length = parse_length(linked_size.empty() ? reply.header("content-length") : linked_size);
  if (!length) return unusable(ask.what, fmt::format("tells no length of {}", name));
  if (!is_file_name(file.etag)) return unusable(ask.what, fmt::format("has no usable ETag of {}", name));
  file.num_bytes = *length;
  if (is_hexadecimal(file.etag, 64)) file.sha256 = file.etag;  // of large files; small ones have git's own digest
  return file;
}

Error HubSource::explain(const Ask& ask, const HttpReply& reply) const {
  const std::string error_code(reply.header("x-error-code"));
  if (!reply.trouble.empty() || reply.status >= 500 || reply.status == 429 || reply.status == 408) {
    return source_unavailable(ask.what, "the hub", reply);
  }
  if (reply.status == 404 && error_code == "RevisionNotFound") {
    return {ErrorCode::kAdapterNotFound,
            fmt::format("{}: the hub has no revision '{}' of it", ask.what, ask.id.revision)};
  }
  if (reply.status == 404 && error_code == "EntryNotFound") {
    return {ErrorCode::kAdapterNotFound,
            fmt::format("{}: the hub's repository lacks one of the files adapter_config.json and "
                        "adapter_model.safetensors (pickled weights, .bin, are never read)",
                        ask.what)};
  }
  if (reply.status == 401 || reply.status == 404) {
    return {ErrorCode::kAdapterNotFound,
            fmt::format("{} not found at the hub, or not to be read {}", ask.what,
                        ask.token.empty() ? "without an `api_token`" : "with the token that was used")};
  }
  if (reply.status == 403) {
    return {ErrorCode::kAdapterInvalid,
            fmt::format("{}: the hub refuses access {}{}", ask.what,
                        ask.token.empty() ? "without an `api_token`" : "to the owner of this token",
                        error_code == "GatedRepo" ? ", who must ask for it on the repository's page" : "")};
  }
  return {ErrorCode::kUnavailable, fmt::format("{}: the hub answered {}", ask.what, reply.status)};
}

Result<std::filesystem::path> HubSource::from_cache(const Ask& ask, const std::string& why) {
  const std::string repo = ask.id.folder();
  const auto commit = cache_.known_commit(repo, ask.id.revision);
  const auto folder = commit ? cache_.find_known(repo, *commit, adapter_file_names(), ask.reader) : std::nullopt;
  if (folder) {
    if (!options_.remote.offline) spdlog::warn("{}: taken from the cache, for {}", ask.what, why);
    return *folder;
  }
  if (!options_.remote.offline) return Error{ErrorCode::kUnavailable, why};
  return Error{ErrorCode::kAdapterNotFound,
               fmt::format("{} is not in the cache for whoever asks, and {}", ask.what, why)};
}

}  // namespace shoal
