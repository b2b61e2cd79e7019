#include "hub/snapshot_fetch.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

#include "hub/sha256.h"

namespace shoal {
namespace {

constexpr std::int64_t kMaxConfigBytes = 1 << 20;

Status fetch_blob(SnapshotCache& cache, const HttpClient& client, const SnapshotPlan& plan, const RemoteFile& file) {
  const std::string what = fmt::format("{}: {}", plan.what, file.name);
  const auto lock = FileLock::take(cache.lock_file(plan.repo, file), client, plan.deadline);
  if (!lock) return Error{ErrorCode::kUnavailable, fmt::format("{} waited too long for another download of it", what)};
  if (cache.has_blob(plan.repo, file)) return Ok{};  // whoever held the lock has brought it
  const auto room = cache.reserve(plan.repo, file, client);
  if (!room.ok()) return Error{room.error().code, fmt::format("{}: {}", plan.what, room.error().message)};
  const DownloadJob job{.what = what,
                        .file = cache.incomplete_file(plan.repo, file),
                        .num_bytes = file.num_bytes,
                        .sha256 = file.sha256,
                        .deadline = plan.deadline,
                        .get = [&](const std::vector<std::string>& headers,
                                   const DownloadJob::Sink& sink) { return plan.get(file, headers, sink); },
                        .explain = plan.explain};
  Status downloaded = download(client, job);
  if (!downloaded.ok()) return downloaded;
  spdlog::info("{}: {} bytes fetched", what, file.num_bytes);
  return cache.finish_blob(plan.repo, file);
}

}  // namespace

const std::vector<std::string>& adapter_file_names() {
  static const std::vector<std::string> names = {"adapter_config.json", "adapter_model.safetensors"};
  return names;
}

Result<std::filesystem::path> fetch_snapshot(SnapshotCache& cache, const HttpClient& client, const SnapshotPlan& plan) {
  std::optional<std::filesystem::path> folder = cache.find(plan.repo, plan.commit, plan.files);
  if (!folder) {
    for (const RemoteFile& file : plan.files) {
      const Status fetched = fetch_blob(cache, client, plan, file);
      if (!fetched.ok()) return fetched.error();
    }
    const Status linked = cache.link(plan.repo, plan.commit, plan.files);
    if (!linked.ok()) return linked.error();
    folder = cache.find(plan.repo, plan.commit, plan.files);
  }
  if (!folder) return Error{ErrorCode::kUnavailable, fmt::format("{} vanished from the cache", plan.what)};
  const Status noted = cache.note(plan.repo, plan.revision, plan.commit, plan.reader);
  if (!noted.ok())
    spdlog::warn("{}: {}", plan.what, noted.error().message);  // a cache that cannot be written still serves
  return *folder;
}

Status check_lengths(const SnapshotPlan& plan, const RemoteOptions& options) {
  for (const RemoteFile& file : plan.files) {
    const bool is_config = file.name == adapter_file_names().front();
    const std::int64_t most = is_config ? kMaxConfigBytes : options.max_file_bytes;
    if (file.num_bytes > most) {
      return Error{ErrorCode::kAdapterInvalid,
                   fmt::format("{}: {} has {} bytes, expected at most {}", plan.what, file.name, file.num_bytes, most)};
    }
  }
  return Ok{};
}

std::string reader_name(const std::string& origin, const std::string& secret) {
  return secret.empty() ? "public" : sha256_of(origin + '\n' + secret).substr(0, 40);
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& id) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), id.c_str(), 0) == 0; });
}

std::optional<std::int64_t> parse_length(std::string_view text) {
  std::int64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error != std::errc() || end != text.data() + text.size() || length < 0) return std::nullopt;
  return length;
}

Error source_unavailable(const std::string& what, const std::string& source, const HttpReply& reply) {
  const std::string why = reply.trouble.empty() ? fmt::format("it answered {}", reply.status) : reply.trouble;
  return {ErrorCode::kUnavailable, fmt::format("{} cannot be fetched from {} now: {}", what, source, why)};
}

}  // namespace shoal
