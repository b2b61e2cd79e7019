// SchedulerFixture: a scheduler on a small fake engine. Used by scheduler tests.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/fake_engine.h"
#include "scheduler/scheduler.h"
#include "scheduler/test_client.h"

namespace shoal::test {

inline EngineInfo small_engine() {
  return {.model_family = "fake",
          .dtype = "float32",
          .device = "cpu/fake",
          .vocab_size = 1000,
          .max_positions = 4096,
          .num_blocks = 64,
          .max_step_tokens = 256,
          .max_sequences = 8};
}

inline Request request_of(std::int64_t prompt_tokens, std::int64_t max_new_tokens, std::int64_t first_id = 1) {
  Request request{.prompt_ids = std::vector<std::int64_t>(static_cast<std::size_t>(prompt_tokens)),
                  .max_new_tokens = max_new_tokens,
                  .sampling = {},
                  .adapter = std::nullopt,
                  .stop = {}};
  std::iota(request.prompt_ids.begin(), request.prompt_ids.end(), first_id);
  return request;
}

inline Request with_adapter(Request request, const std::string& id) {
  request.adapter = AdapterKey{.source = "local", .id = id};
  return request;
}

struct SchedulerFixture {
  explicit SchedulerFixture(EngineInfo info = small_engine(), SchedulerOptions options = {})
      : engine(std::move(info), wakeup), scheduler(engine, wakeup, nullptr, std::move(options)) {}

  TestClient submit(const Request& request) { return TestClient(scheduler, request); }

  void expect_all_given_back() {
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.queued, 0);
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.used_blocks, 0);
    EXPECT_EQ(engine.num_pins(), 0);
  }

  Wakeup wakeup;
  FakeEngine engine;
  Scheduler scheduler;
};

}  // namespace shoal::test
