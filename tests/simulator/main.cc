// shoal_simulate: drives the scheduler through random traces, and shrinks and prints the first that fails. Exits with 0
// if none does - or, with --must-fail, if one does and shrinks to less than half of its requests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "simulator/child_runs.h"
#include "simulator/shrink.h"

namespace {

struct Options {
  std::int64_t num_traces = 300;
  std::uint64_t first_seed = 1;
  std::int64_t num_jobs = std::max(1U, std::thread::hardware_concurrency());
  std::int64_t most_shrink_runs = 2000;
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

// False where it is not much smaller.
bool print_smallest(std::uint64_t seed, std::int64_t most_runs) {
  const shoal::Trace trace = shoal::random_trace(seed);
  const shoal::Trace smallest = shoal::shrink(
      trace, [](const shoal::Trace& tried) { return !shoal::simulate_in_child(tried).failure.empty(); }, most_runs);
  fmt::print("shrunk from {} requests to {}:\n{}\nwhich fails with:\n{}\n", trace.requests.size(),
             smallest.requests.size(), shoal::to_text(smallest), shoal::simulate_in_child(smallest).failure);
  return 2 * smallest.requests.size() < trace.requests.size();
}

int run(const Options& options) {
  fmt::print("traces of the seeds {} to {}\n", options.first_seed,
             options.first_seed + static_cast<std::uint64_t>(options.num_traces) - 1);
  const auto begin = std::chrono::steady_clock::now();
  const shoal::RunsReport report = shoal::simulate_seeds(options.first_seed, options.num_traces, options.num_jobs);
  print_counts(report, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  bool well = report.failed_seed.has_value() == options.must_fail;
  if (report.failed_seed) {
    fmt::print("seed {}, trace {} of this run, fails:\n{}\n", *report.failed_seed, report.num_runs, report.failure);
    well = print_smallest(*report.failed_seed, options.most_shrink_runs) && well;
  }
  return well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("random traces through the real scheduler, in virtual time");
  app.add_option("--traces", options.num_traces, "how many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--first-seed", options.first_seed, "of the first trace; the others follow")->capture_default_str();
  app.add_option("--jobs", options.num_jobs, "at a time")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--shrink-runs", options.most_shrink_runs, "tries to make a failed trace smaller, at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--must-fail", options.must_fail, "a trace has to fail, and to shrink");
  CLI11_PARSE(app, argc, argv);
  testing::InitGoogleTest();
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
