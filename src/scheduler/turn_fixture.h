// TurnFixture: the scheduler's loop on a fake engine, turn by turn on the test's thread, with a clock of the test's.
// Used by scheduler tests that count steps.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/loop.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal::test {

// One request and what came of it.
struct TurnRequest {
  std::shared_ptr<EventStream> stream;
  std::int64_t submitted = 0;    // turns that were over
  std::int64_t first_token = 0;  // the turn that gave it; 0: none yet
  std::int64_t num_tokens = 0;
  bool finished = false;
  std::optional<Error> error = {};

  bool ended() const { return finished || error.has_value(); }
};

class TurnFixture {
 public:
  explicit TurnFixture(EngineInfo info = small_engine(), SchedulerOptions options = {},
                       const AdapterTierOptions& adapters = {.device_bytes = 1 << 20, .host_bytes = 1 << 20})
      : engine(std::move(info), wakeup, adapters), loop(engine, wakeup, nullptr, with_clock(std::move(options))) {}

  // Null where it was refused; then `refusal` tells why.
  TurnRequest* submit(Request request) {
    auto result = loop.submit(std::move(request), nullptr);
    if (!result.ok()) {
      refusal = result.error();
      return nullptr;
    }
    requests.push_back(std::make_unique<TurnRequest>(TurnRequest{.stream = result.value(), .submitted = num_turns}));
    return requests.back().get();
  }

  // False where there was nothing to run.
  bool turn() {
    const bool ran = loop.turn(Scheduler::Loop::News::kRung);
    ++num_turns;
    for (const auto& request : requests) read(*request);
    return ran;
  }
  void run_to_end() {
    while (turn()) {
    }
  }
  void advance(std::chrono::milliseconds time) { time_ += time; }

  void expect_all_given_back() const {
    const SchedulerStats stats = loop.stats();
    EXPECT_EQ(stats.queued, 0);
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.used_blocks, 0);
    EXPECT_EQ(engine.num_pins(), 0);
  }

  Wakeup wakeup;
  FakeEngine engine;
  std::chrono::steady_clock::time_point time_{std::chrono::seconds(1)};
  Scheduler::Loop loop;
  std::int64_t num_turns = 0;
  std::vector<std::unique_ptr<TurnRequest>> requests;
  Error refusal;

 private:
  SchedulerOptions with_clock(SchedulerOptions options) {
    options.now = [this] { return time_; };
    return options;
  }
  void read(TurnRequest& request) const {
    if (request.ended()) return;
    while (const auto event = request.stream->pop()) {
      if (std::holds_alternative<TokenEvent>(*event)) {
        if (request.num_tokens++ == 0) request.first_token = num_turns;
      } else if (const auto* error = std::get_if<Error>(&*event)) {
        request.error = *error;
      } else {
        request.finished = true;
      }
    }
  }
};

}  // namespace shoal::test
