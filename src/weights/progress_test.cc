#include "weights/progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace shoal {
namespace {

struct Recorder {
  std::vector<std::string> texts;
  double now_s = 100.0;

  ProgressReporter reporter(ProgressStyle style, std::int64_t total_bytes) {
    return ProgressReporter({.label = "loading weights",
                             .total_bytes = total_bytes,
                             .style = style,
                             .write = [this](const std::string& text) { texts.push_back(text); },
                             .now_s = [this] { return now_s; }});
  }
};

TEST(Progress, LogsALineEveryTenthOrFiveSeconds) {
  Recorder recorder;
  ProgressReporter reporter = recorder.reporter(ProgressStyle::kLog, 10'000'000'000);
  for (int i = 0; i < 80; ++i) {  // 10 s at 1 GB/s: a line a tenth
    recorder.now_s += 0.125;
    reporter.add(125'000'000);
  }
  ASSERT_EQ(recorder.texts.size(), 10U);
  EXPECT_EQ(recorder.texts[0], "loading weights: 10 % of 10.00 GB, 1.00 GB/s");
  recorder.texts.clear();
  ProgressReporter slow = recorder.reporter(ProgressStyle::kLog, 10'000'000'000);
  for (int i = 0; i < 60; ++i) {  // a minute at 1 MB/s: a line each five seconds
    recorder.now_s += 1.0;
    slow.add(1'000'000);
  }
  EXPECT_EQ(recorder.texts.size(), 12U);
}

TEST(Progress, AQuickLoadLogsTheSummaryAlone) {
  Recorder recorder;
  ProgressReporter reporter = recorder.reporter(ProgressStyle::kLog, 1000);
  for (int i = 0; i < 100; ++i) reporter.add(10);
  EXPECT_TRUE(recorder.texts.empty());
  recorder.now_s += 0.5;
  reporter.finish();
  EXPECT_EQ(recorder.texts, std::vector<std::string>{"loading weights: 0.00 GB in 0.5 s (0.00 GB/s)"});
}

TEST(Progress, TheBarIsDrawnAtMostTenTimesASecond) {
  Recorder recorder;
  ProgressReporter reporter = recorder.reporter(ProgressStyle::kBar, 2'000'000'000);
  for (int i = 0; i < 1024; ++i) {
    recorder.now_s += 1.0 / 1024.0;
    if (i < 1000) reporter.add(1'000'000);
  }
  EXPECT_GE(recorder.texts.size(), 8U);
  EXPECT_LE(recorder.texts.size(), 10U);
  recorder.now_s += 1.0;
  reporter.add(0);
  EXPECT_EQ(recorder.texts.back(),
            "\r\x1b[Kloading weights [###############...............]  50 % 1.00/2.00 GB 0.50 GB/s");
  reporter.finish();
  EXPECT_EQ(recorder.texts.back(), "\r\x1b[Kloading weights: 1.00 GB in 2.0 s (0.50 GB/s)\n");
}

TEST(Progress, UnknownTotalsAndOverrunsStayInRange) {
  Recorder recorder;
  ProgressReporter unknown = recorder.reporter(ProgressStyle::kBar, 0);
  recorder.now_s += 1.0;
  unknown.add(3'000'000'000);
  EXPECT_EQ(recorder.texts.back(), "\r\x1b[Kloading weights 3.00 GB 3.00 GB/s");
  ProgressReporter overrun = recorder.reporter(ProgressStyle::kBar, 10);
  recorder.now_s += 1.0;
  overrun.add(30);
  EXPECT_NE(recorder.texts.back().find("100 %"), std::string::npos);
}

TEST(Progress, SilentWritesNothing) {
  Recorder recorder;
  ProgressReporter reporter = recorder.reporter(ProgressStyle::kSilent, 10);
  recorder.now_s += 100.0;
  reporter.add(10);
  reporter.finish();
  EXPECT_TRUE(recorder.texts.empty());
}

}  // namespace
}  // namespace shoal
