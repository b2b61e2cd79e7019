#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "hub/file_lock.h"
#include "hub/sha256.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProgressPause{5};
constexpr int kMostAttempts = 100;  // be they ever so fruitful
constexpr int kMostDigests = 2;     // a file that was damaged before is fetched anew once

Error unwritable(const DownloadJob& job) {
  return {ErrorCode::kUnavailable,
          fmt::format("{} cannot be written to the cache: {}", job.what, std::strerror(errno))};
}

// The file, and what the exchange of one attempt does with it.
class Writer {
 public:
  Writer(const DownloadJob& job, int fd) : job_(job), fd_(fd) {}

  // Bytes that are there; -1 where they cannot be told.
  std::int64_t size() const {
    struct stat seen{};
    return ::fstat(fd_, &seen) == 0 ? static_cast<std::int64_t>(seen.st_size) : -1;
  }
  bool empty() { return ::ftruncate(fd_, 0) == 0; }
  // The next attempt asks for what follows the first `begin` bytes.
  void begin(std::int64_t begin) {
    begin_ = begin;
    at_ = -1;
  }

  bool take(const HttpReply& head, std::span<const char> bytes) {
    if (at_ < 0 && !settle(head)) return false;
    if (at_ + static_cast<std::int64_t>(bytes.size()) > job_.num_bytes) {
      error_ = Error{ErrorCode::kAdapterInvalid,
                     fmt::format("{} is longer than the {} bytes that were promised", job_.what, job_.num_bytes)};
      return false;
    }
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), at_);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        error_ = unwritable(job_);
        return false;
      }
      at_ += written;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    tell();
    return true;
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  // Where the body begins: a server may answer a range with the whole, never with another one.
  bool settle(const HttpReply& head) {
    if (head.status == 206) {
      const std::string wanted = fmt::format("bytes {}-", begin_);
      const bool right = head.header("content-range").starts_with(wanted);
      if (!right) {
        error_ = Error{ErrorCode::kUnavailable, fmt::format("{}: the range '{}' was sent, expected '{}'", job_.what,
                                                            head.header("content-range"), wanted)};
        return false;
      }
      at_ = begin_;
      return true;
    }
    at_ = 0;
    if (empty()) return true;
    error_ = unwritable(job_);
    return false;
  }

  void tell() {
    if (Clock::now() < told_ + kProgressPause) return;
    told_ = Clock::now();
    spdlog::info("{}: {} of {} bytes", job_.what, at_, job_.num_bytes);
  }

  const DownloadJob& job_;
  const int fd_;
  std::int64_t begin_ = 0;
  std::int64_t at_ = -1;  // where the next byte goes; -1: the body has not begun
  std::optional<Error> error_;
  Clock::time_point told_ = Clock::now();
};

// One exchange, from what is there on. Ok: it went as far as it did.
Status run_attempt(const DownloadJob& job, Writer& writer, std::int64_t begin, HttpReply& reply) {
  std::vector<std::string> headers;
  if (begin > 0) headers.push_back(fmt::format("Range: bytes={}-", begin));
  writer.begin(begin);
  reply =
      job.get(headers, [&](const HttpReply& head, std::span<const char> bytes) { return writer.take(head, bytes); });
  if (writer.error()) return *writer.error();
  if (reply.status == 416 && begin > 0) {  // what is there belongs to another file
    reply.worth_retry = true;
    return writer.empty() ? Status(Ok{}) : Status(unwritable(job));
  }
  const bool bad_status = reply.status != 0 && (reply.status < 200 || reply.status > 299);
  if (!reply.worth_retry && (bad_status || !reply.trouble.empty())) return job.explain(reply);
  return Ok{};
}

}  // namespace

Status download(const HttpClient& client, const DownloadJob& job) {
  const FileDescriptor file(::open(job.file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file.get() < 0) return unwritable(job);
  Writer writer(job, file.get());
  int fruitless = 0;
  int digests = 0;
  for (int attempt = 1;; ++attempt) {
    std::int64_t before = writer.size();
    if (before > job.num_bytes && writer.empty()) before = 0;
    HttpReply reply;
    if (before != job.num_bytes) {
      const Status ran = run_attempt(job, writer, before, reply);
      if (!ran.ok()) return ran;
    }
    const std::int64_t after = writer.size();
    if (after == job.num_bytes) {
      if (job.sha256.empty() || sha256_of_file(file.get()) == job.sha256) {
        if (::fsync(file.get()) != 0) return unwritable(job);
        return Ok{};
      }
      if (++digests == kMostDigests || !writer.empty()) {
        return Error{ErrorCode::kAdapterInvalid,
                     fmt::format("{} does not have the SHA-256 that was promised", job.what)};
      }
      continue;
    }
    fruitless = after > before ? 1 : fruitless + 1;
    if (attempt == kMostAttempts || !client.pause(reply, fruitless, job.deadline)) {
      if (reply.ok()) reply.trouble = fmt::format("it ended after {} of {} bytes", after, job.num_bytes);
      return job.explain(reply);
    }
  }
}

}  // namespace shoal
