#include "weights/progress.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace shoal {
namespace {

constexpr double kBarPeriodS = 0.1;
constexpr double kLinePeriodS = 5.0;
constexpr double kMinLinePeriodS = 1.0;  // a model that loads at once needs no ten lines
constexpr std::int64_t kLineShare = 10;  // a tenth of the total
constexpr std::int64_t kBarWidth = 30;
constexpr double kGigabyte = 1e9;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double to_gb(std::int64_t num_bytes) { return static_cast<double>(num_bytes) / kGigabyte; }

void write_to_stderr(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

void write_to_log(const std::string& text) { spdlog::info("{}", text); }

}  // namespace

ProgressReporter::ProgressReporter(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.now_s) options_.now_s = steady_seconds;
  if (!options_.write) options_.write = options_.style == ProgressStyle::kBar ? write_to_stderr : write_to_log;
  start_s_ = options_.now_s();
  last_write_s_ = start_s_;
}

ProgressStyle ProgressReporter::style_of_stderr() {
  return ::isatty(STDERR_FILENO) == 1 ? ProgressStyle::kBar : ProgressStyle::kLog;
}

void ProgressReporter::add(std::int64_t num_bytes) {
  done_bytes_ += num_bytes;
  if (options_.style == ProgressStyle::kSilent) return;
  const double now_s = options_.now_s();
  const double since_s = now_s - last_write_s_;
  if (options_.style == ProgressStyle::kBar) {
    if (since_s >= kBarPeriodS) write_bar(now_s);
    return;
  }
  const bool is_tenth =
      options_.total_bytes > 0 && (done_bytes_ - last_write_bytes_) >= options_.total_bytes / kLineShare;
  if (since_s >= kLinePeriodS || (is_tenth && since_s >= kMinLinePeriodS)) write_line(now_s);
}

void ProgressReporter::finish() {
  if (options_.style == ProgressStyle::kSilent) return;
  const double now_s = options_.now_s();
  const std::string summary = fmt::format("{}: {:.2f} GB in {:.1f} s ({:.2f} GB/s)", options_.label, to_gb(done_bytes_),
                                          now_s - start_s_, rate_gb_s(now_s));
  // The bar's line is cleared first, since the summary may be shorter.
  options_.write(options_.style == ProgressStyle::kBar ? "\r\x1b[K" + summary + "\n" : summary);
}

double ProgressReporter::rate_gb_s(double now_s) const {
  const double elapsed_s = now_s - start_s_;
  return elapsed_s > 0.0 ? to_gb(done_bytes_) / elapsed_s : 0.0;
}

std::string ProgressReporter::bar(double now_s) const {
  if (options_.total_bytes <= 0) {
    return fmt::format("{} {:.2f} GB {:.2f} GB/s", options_.label, to_gb(done_bytes_), rate_gb_s(now_s));
  }
  const double share = std::min(1.0, static_cast<double>(done_bytes_) / static_cast<double>(options_.total_bytes));
  const auto filled = static_cast<std::int64_t>(share * static_cast<double>(kBarWidth));
  return fmt::format("{} [{}{}] {:3.0f} % {:.2f}/{:.2f} GB {:.2f} GB/s", options_.label,
                     std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), share * 100.0, to_gb(done_bytes_),
                     to_gb(options_.total_bytes), rate_gb_s(now_s));
}

void ProgressReporter::write_bar(double now_s) {
  last_write_s_ = now_s;
  last_write_bytes_ = done_bytes_;
  options_.write("\r\x1b[K" + bar(now_s));
}

void ProgressReporter::write_line(double now_s) {
  last_write_s_ = now_s;
  last_write_bytes_ = done_bytes_;
  if (options_.total_bytes <= 0) {
    options_.write(fmt::format("{}: {:.2f} GB, {:.2f} GB/s", options_.label, to_gb(done_bytes_), rate_gb_s(now_s)));
    return;
  }
  const double percent = 100.0 * static_cast<double>(std::min(done_bytes_, options_.total_bytes)) /
                         static_cast<double>(options_.total_bytes);
  options_.write(fmt::format("{}: {:.0f} % of {:.2f} GB, {:.2f} GB/s", options_.label, percent,
                             to_gb(options_.total_bytes), rate_gb_s(now_s)));
}

}  // namespace shoal
