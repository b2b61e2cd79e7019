#include "simulator/simulation.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/block_size.h"
#include "scheduler/loop.h"
#include "simulator/invariants.h"
#include "simulator/reader.h"
#include "simulator/simulated_engine.h"

namespace shoal {
namespace {

EngineInfo engine_of(const Trace& trace) {
  return {.model_family = "fake",
          .dtype = "float32",
          .device = "cpu/fake",
          .vocab_size = kTraceVocabulary,
          .max_positions = kTracePositions,
          .num_blocks = trace.num_blocks,
          .max_step_tokens = trace.step_tokens,
          .max_sequences = trace.max_sequences,
          .sliding_window = trace.sliding_window,
          .runs_beside_host = trace.runs_ahead};
}

AdapterTierOptions tiers_of(const Trace& trace) {
  return {.device_bytes = trace.device_units * BytePool::kAlignment,
          .host_bytes = trace.host_units * BytePool::kAlignment,
          .max_device_adapters = trace.max_device_adapters};
}

class Simulation {
 public:
  // `failures`: where failed expectations are gathered. Both outlive the simulation.
  Simulation(const Trace& trace, const testing::TestPartResultArray& failures);
  ~Simulation() { time_.forget_events(); }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  void run();
  SimulationCounts counts() const;

 private:
  static constexpr std::int64_t kMostTurns = 200'000;

  SchedulerOptions options() const;
  void submit(const TraceRequest& traced);
  void check_refusal(const Reader& reader, const Error& error, const SchedulerStats& before) const;
  std::optional<Scheduler::Loop::News> wait();
  void check_permits() const;
  void check_end() const;

  const Trace& trace_;
  const testing::TestPartResultArray& failures_;
  VirtualTime time_;
  Wakeup wakeup_;
  FakeEngine fake_;
  SimulatedEngine engine_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::int64_t num_accepted_ = 0;
  Scheduler::Loop loop_;
  Invariants invariants_;
};

Simulation::Simulation(const Trace& trace, const testing::TestPartResultArray& failures)
    : trace_(trace),
      failures_(failures),
      fake_(engine_of(trace), wakeup_, tiers_of(trace)),
      engine_(fake_, trace, time_),
      loop_(engine_, wakeup_, nullptr, options()),
      invariants_(loop_, fake_, engine_, trace, time_) {
  for (const TraceRequest& traced : trace.requests) {
    time_.after(std::chrono::microseconds(traced.arrival_us), [this, &traced] { submit(traced); });
  }
  for (const auto& [time_us, adapter] : trace.replacements) {
    time_.after(std::chrono::microseconds(time_us),
                [this, id = adapter_name(trace, adapter)] { fake_.replace_adapter(id); });
  }
}

SchedulerOptions Simulation::options() const {
  const auto limit = [](std::int64_t most) { return most < 0 ? std::nullopt : std::optional(most); };
  return {.max_batch_prefill_tokens = trace_.step_tokens,
          .max_concurrent_requests = trace_.max_requests,
          .max_queue = limit(trace_.max_queue),
          .max_requests_per_tenant = limit(trace_.max_of_tenant),
          .request_timeout = std::chrono::milliseconds(trace_.timeout_ms),
          .adapter_cycle_time = std::chrono::milliseconds(trace_.cycle_ms),
          .block_order = trace_.shuffled_blocks ? BlockOrder::kShuffled : BlockOrder::kAscending,
          .prefix_caching = trace_.prefix_caching,
          .now = [this] { return time_.now(); }};
}

void Simulation::submit(const TraceRequest& traced) {
  const SchedulerStats stats = loop_.stats();
  Reader& reader = *readers_.emplace_back(std::make_unique<Reader>(fake_, trace_, traced, time_));
  auto result = loop_.submit(reader.request(), [&reader] { reader.read(); });
  if (!result.ok()) {
    check_refusal(reader, result.error(), stats);
    return;
  }
  EXPECT_LT(stats.queued + stats.running, trace_.max_requests) << "one more than may be there at once";
  ++num_accepted_;
  reader.open(result.value());
  if (traced.cancel_after_us >= 0) {
    time_.after(std::chrono::microseconds(traced.cancel_after_us), [&reader] { reader.cancel(); });
  }
}

void Simulation::check_refusal(const Reader& reader, const Error& error, const SchedulerStats& before) const {
  const std::int64_t num_tokens = std::ssize(reader.request().prompt_ids) + reader.request().max_new_tokens;
  const bool never_fits = num_tokens > kTracePositions || blocks_for_tokens(num_tokens) > trace_.num_blocks;
  std::int64_t num_of_tenant = 0;
  for (const auto& other : readers_) {
    num_of_tenant += other->accepted() && other->request().tenant == reader.request().tenant ? 1 : 0;
  }
  const bool is_full = before.queued + before.running >= trace_.max_requests ||
                       (trace_.max_queue >= 0 && before.queued >= trace_.max_queue) ||
                       (trace_.max_of_tenant >= 0 && num_of_tenant >= trace_.max_of_tenant);
  EXPECT_TRUE(never_fits || is_full) << "refused: " << error.message;
  EXPECT_EQ(error.code, never_fits ? ErrorCode::kValidation : ErrorCode::kOverloaded);
}

void Simulation::run() {
  auto news = Scheduler::Loop::News::kRung;
  for (std::int64_t turn = 0; turn < kMostTurns; ++turn) {
    invariants_.begin_turn();
    const bool worked = loop_.turn(news);
    invariants_.end_turn();
    check_permits();
    if (failures_.size() > 0) return;
    if (worked) {
      news = wakeup_.take() ? Scheduler::Loop::News::kRung : Scheduler::Loop::News::kNone;
    } else if (const auto woken_by = wait()) {
      news = *woken_by;
    } else {
      check_end();
      return;
    }
  }
  ADD_FAILURE() << "no end after " << kMostTurns << " turns";
}

// As the scheduler's thread sleeps: only a ring or the deadline wakes it. None where neither will come.
std::optional<Scheduler::Loop::News> Simulation::wait() {
  const auto deadline = loop_.deadline();
  while (!wakeup_.take()) {
    if (deadline && *deadline <= time_.now()) return Scheduler::Loop::News::kNone;
    if (!deadline && !time_.has_events()) return std::nullopt;
    time_.advance_to_next(deadline.value_or(VirtualTime::TimePoint::max()));
  }
  return Scheduler::Loop::News::kRung;
}

// A permit for each request that was accepted and has not ended.
void Simulation::check_permits() const {
  const SchedulerStats stats = loop_.stats();
  const std::int64_t num_ended = stats.finished + stats.cancelled + stats.failed;
  EXPECT_EQ(stats.queued + stats.running, num_accepted_ - num_ended) << "permits of requests that are gone";
}

void Simulation::check_end() const {
  std::int64_t num_finished = 0, num_failed_rows = 0;
  for (const auto& reader : readers_) {
    if (!reader->accepted()) continue;
    EXPECT_TRUE(reader->ended() || reader->cancelled()) << "a request waits and nothing will ever happen";
    num_finished += reader->finished() ? 1 : 0;
    num_failed_rows += reader->failed_with_its_step() ? 1 : 0;
  }
  const SchedulerStats stats = loop_.stats();
  EXPECT_EQ(stats.finished, num_finished);
  EXPECT_LE(num_failed_rows, engine_.num_failed_rows()) << "a failed step fails its own rows, and each once";
  if (!trace_.runs_ahead) {
    EXPECT_EQ(engine_.num_failed_rows(), num_failed_rows) << "a failed step fails all its rows";
  }
  EXPECT_EQ(stats.queued, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(fake_.num_pins(), 0);
  EXPECT_EQ(fake_.adapter_stats().tiers.pinned_bytes, 0);
}

SimulationCounts Simulation::counts() const {
  const SchedulerStats stats = loop_.stats();
  const AdapterTierStats tiers = fake_.adapter_stats().tiers;
  SimulationCounts counts{.requests = std::ssize(readers_),
                          .refused = std::ssize(readers_) - num_accepted_,
                          .finished = stats.finished,
                          .cancelled = stats.cancelled,
                          .failed = stats.failed,
                          .tokens = stats.generated_tokens,
                          .steps = stats.steps,
                          .preemptions = stats.preemptions,
                          .prefix_hits = stats.prefix.hits,
                          .prefix_evictions = stats.prefix.evicted_blocks,
                          .loads = tiers.loads,
                          .failed_loads = tiers.failed_loads,
                          .device_evictions = tiers.device_evictions,
                          .host_evictions = tiers.host_evictions,
                          .worst_wait_share = invariants_.worst_wait_share()};
  for (const auto& reader : readers_) counts.digest = draw_of(counts.digest, reader->digest());
  return counts;
}

}  // namespace

void SimulationCounts::add(const SimulationCounts& other) {
  requests += other.requests;
  refused += other.refused;
  finished += other.finished;
  cancelled += other.cancelled;
  failed += other.failed;
  tokens += other.tokens;
  steps += other.steps;
  preemptions += other.preemptions;
  prefix_hits += other.prefix_hits;
  prefix_evictions += other.prefix_evictions;
  loads += other.loads;
  failed_loads += other.failed_loads;
  device_evictions += other.device_evictions;
  host_evictions += other.host_evictions;
  worst_wait_share = std::max(worst_wait_share, other.worst_wait_share);
  digest += other.digest;  // in any order
}

SimulationResult simulate(const Trace& trace) {
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);  // steps fail, as they should
  SimulationResult result;
  testing::TestPartResultArray failures;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    Simulation simulation(trace, failures);
    simulation.run();
    result.counts = simulation.counts();
  }
  spdlog::set_level(level);
  if (failures.size() > 0) result.failure = failures.GetTestPartResult(0).message();
  return result;
}

}  // namespace shoal
