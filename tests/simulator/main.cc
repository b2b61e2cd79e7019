// shoal_simulate: drives the scheduler through random traces, and shrinks and prints the first that fails. Exits with 0
// if none does - or, with --must-fail, if one does.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "simulator/child_runs.h"
#include "simulator/shrink.h"

namespace {

constexpr std::int64_t kMostShrinkRuns = 4000;

struct Options {
  std::int64_t num_traces = 300;
  std::uint64_t first_seed = 1;
  std::int64_t num_jobs = std::max(1U, std::thread::hardware_concurrency());
  bool must_fail = false;
};

void print_counts(const shoal::RunsReport& report, double seconds) {
  const shoal::SimulationCounts& counts = report.counts;
  fmt::print("{} traces in {:.1f} s, {:.0f} a minute\n", report.num_runs, seconds,
             static_cast<double>(report.num_runs) / seconds * 60.0);
  fmt::print("{} requests: {} finished, {} cancelled, {} failed, {} refused; {} tokens in {} steps\n", counts.requests,
             counts.finished, counts.cancelled, counts.failed, counts.refused, counts.tokens, counts.steps);
  fmt::print("{} preemptions; prefix cache: {} hits, {} evictions\n", counts.preemptions, counts.prefix_hits,
             counts.prefix_evictions);
  fmt::print("adapters: {} loads, {} failed, {} evictions from the device, {} from the host\n", counts.loads,
             counts.failed_loads, counts.device_evictions, counts.host_evictions);
  fmt::print("longest wait of the first of all: {:.2f} of the bound; digest {:016x}\n", counts.worst_wait_share,
             counts.digest);
}

void print_smallest(std::uint64_t seed) {
  const shoal::Trace trace = shoal::random_trace(seed);
  const shoal::Trace smallest = shoal::shrink(
      trace, [](const shoal::Trace& tried) { return !shoal::simulate_in_child(tried).failure.empty(); },
      kMostShrinkRuns);
  fmt::print("shrunk from {} requests to {}:\n{}\nwhich fails with:\n{}\n", trace.requests.size(),
             smallest.requests.size(), shoal::to_text(smallest), shoal::simulate_in_child(smallest).failure);
}

int run(const Options& options) {
  fmt::print("traces of the seeds {} to {}\n", options.first_seed,
             options.first_seed + static_cast<std::uint64_t>(options.num_traces) - 1);
  const auto begin = std::chrono::steady_clock::now();
  const shoal::RunsReport report = shoal::simulate_seeds(options.first_seed, options.num_traces, options.num_jobs);
  print_counts(report, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (report.failed_seed) {
    fmt::print("seed {}, trace {} of this run, fails:\n{}\n", *report.failed_seed, report.num_runs, report.failure);
    print_smallest(*report.failed_seed);
  }
  return report.failed_seed.has_value() == options.must_fail ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("random traces through the real scheduler, in virtual time");
  app.add_option("--traces", options.num_traces, "how many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--first-seed", options.first_seed, "of the first trace; the others follow")->capture_default_str();
  app.add_option("--jobs", options.num_jobs, "at a time")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--must-fail", options.must_fail, "a trace has to fail");
  CLI11_PARSE(app, argc, argv);
  testing::InitGoogleTest();
  spdlog::set_level(spdlog::level::off);  // steps fail as they should
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
