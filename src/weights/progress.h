// ProgressReporter: how far a load is, as a bar on a terminal or as a few lines in a log. Used by the engine's loader
// and `shoal pull`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shoal {

enum class ProgressStyle : std::uint8_t { kBar, kLog, kSilent };

struct ProgressOptions {
  std::string label = {};        // "loading weights"
  std::int64_t total_bytes = 0;  // 0: unknown
  ProgressStyle style = ProgressStyle::kSilent;
  // Replaced in tests: where text goes (stderr for a bar, the log for lines), and the clock in seconds.
  std::function<void(const std::string&)> write = {};
  std::function<double()> now_s = {};
};

class ProgressReporter {
 public:
  explicit ProgressReporter(ProgressOptions options);

  void add(std::int64_t num_bytes);
  // Ends the bar, or logs the total, the time and the rate.
  void finish();

  // A bar when stderr is a terminal, lines otherwise.
  static ProgressStyle style_of_stderr();

 private:
  double rate_gb_s(double now_s) const;
  std::string bar(double now_s) const;
  void write_bar(double now_s);
  void write_line(double now_s);

  ProgressOptions options_;
  double start_s_ = 0.0;
  double last_write_s_ = 0.0;
  std::int64_t last_write_bytes_ = 0;
  std::int64_t done_bytes_ = 0;
};

}  // namespace shoal
