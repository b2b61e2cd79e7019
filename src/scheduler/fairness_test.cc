// Tenants, adapters and priorities at saturation; limits and timeouts. In turns of the loop, each one step.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "scheduler/turn_fixture.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::request_of;
using test::small_engine;
using test::TurnFixture;
using test::TurnRequest;
using test::with_adapter;

Request of_tenant(const std::string& tenant, Request request) {
  request.tenant = request.cache_salt = tenant;
  return request;
}

EngineInfo roomy_engine(std::int64_t max_sequences) {
  EngineInfo info = small_engine();
  info.num_blocks = 4096;
  info.max_sequences = max_sequences;
  return info;
}

std::int64_t p95(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() * 95 + 99) / 100 - 1];
}

struct Flood {
  std::int64_t max_sequences;
  std::int64_t prompt_tokens;
  std::int64_t new_tokens;
  std::int64_t period;  // turns between two requests of B
  std::int64_t num_blocks = 4096;
  std::int64_t prompt_tokens_of_a = 0;  // 0: as those of B
  std::int64_t num_random = 0;          // so many requests of B come at random, as often; 0: 50, evenly
};

// Turns from a request of B to its first token, beside `num_of_a` requests of A for one of B.
std::vector<std::int64_t> waits_of_b(const Flood& flood, std::int64_t num_of_a) {
  EngineInfo info = roomy_engine(flood.max_sequences);
  info.num_blocks = flood.num_blocks;
  TurnFixture fixture(info, {.max_batch_prefill_tokens = 256, .max_concurrent_requests = 1 << 20});
  const auto request = [&](const std::string& tenant) {
    const bool is_other = tenant == "a" && flood.prompt_tokens_of_a > 0;
    const std::int64_t prompt_tokens = is_other ? flood.prompt_tokens_of_a : flood.prompt_tokens;
    return of_tenant(tenant, request_of(prompt_tokens, flood.new_tokens, fixture.num_turns % 100));
  };
  std::vector<TurnRequest*> of_b;
  std::int64_t due_of_a = 0;
  std::mt19937 random(7);
  std::bernoulli_distribution comes_now(1.0 / static_cast<double>(flood.period));
  while (std::ssize(of_b) < std::max<std::int64_t>(50, flood.num_random)) {
    for (; due_of_a < fixture.num_turns * num_of_a / flood.period; ++due_of_a) fixture.submit(request("a"));
    const bool comes = flood.num_random > 0 ? comes_now(random) : fixture.num_turns % flood.period == 7;
    if (comes) of_b.push_back(fixture.submit(request("b")));
    fixture.turn();
  }
  while (of_b.back()->first_token == 0) fixture.turn();
  std::vector<std::int64_t> waits;
  of_b.erase(of_b.begin(), of_b.begin() + 10);  // until both are known
  for (const TurnRequest* each : of_b) waits.push_back(each->first_token - each->submitted);
  return waits;
}

TEST(Fairness, AFloodOfOneTenantHardlyDelaysAnother) {
  // Few and many places; long answers; prompts of several steps, beside as long and beside short ones; at random.
  for (const Flood& flood :
       {Flood{8, 16, 20, 50}, Flood{32, 16, 20, 50}, Flood{8, 16, 200, 400}, Flood{8, 600, 20, 60},
        Flood{16, 250, 100, 110}, Flood{8, 2000, 20, 60}, Flood{8, 2000, 20, 60, 4096, 20},
        Flood{8, 2000, 4, 60, 4096, 100}, Flood{4, 900, 4, 14, 4096, 0, 150}, Flood{8, 500, 6, 9, 4096, 300, 150}}) {
    const std::int64_t alone = p95(waits_of_b(flood, 0));
    const std::int64_t flooded = p95(waits_of_b(flood, 50));
    EXPECT_LE(flooded, 2 * alone) << "places " << flood.max_sequences << " prompts " << flood.prompt_tokens
                                  << " random " << flood.num_random << ": " << flooded << " turns, alone " << alone;
  }
}

// Prompts of many steps beside one of a part of a step.
TEST(Fairness, AShortPromptDoesNotWaitForTheRestOfALongOne) {
  TurnFixture fixture(roomy_engine(8), {.max_batch_prefill_tokens = 256});
  for (int i = 0; i < 6; ++i) fixture.submit(of_tenant("a", request_of(3000, 20, i)));
  for (int i = 0; i < 15; ++i) fixture.turn();
  for (int i = 0; i < 4; ++i) {
    TurnRequest* of_b = fixture.submit(of_tenant("b", request_of(100, 3, i)));
    fixture.turn();
    EXPECT_EQ(of_b->num_tokens, 1) << i;
    for (int turn = 0; turn < 5; ++turn) fixture.turn();
  }
  fixture.run_to_end();
  EXPECT_LE(fixture.requests[0]->first_token, 3000 / 256 + 1) << "before b came";
  for (const auto& request : fixture.requests) EXPECT_TRUE(request->finished);
}

TEST(Fairness, ALongPromptIsNotStarvedByShortOnes) {
  constexpr std::int64_t kLong = 3000;
  for (const bool starts_first : {true, false}) {
    TurnFixture fixture(roomy_engine(16), {.max_batch_prefill_tokens = 256, .max_concurrent_requests = 10'000});
    const auto submit_short_ones = [&] {
      for (const char* tenant : {"b", "c", "d"}) {
        fixture.submit(of_tenant(tenant, request_of(200, 1, fixture.num_turns % 900)));
      }
    };
    for (int i = 0; i < 5 && !starts_first; ++i) {
      submit_short_ones();
      fixture.turn();
    }
    TurnRequest* of_a = fixture.submit(of_tenant("a", request_of(kLong, 5)));
    while (of_a->first_token == 0 && fixture.num_turns < 1000) {
      submit_short_ones();
      fixture.turn();
    }
    // A few starts before its own, then at least half of each step.
    EXPECT_LE(of_a->first_token - of_a->submitted, kMaxPassed + kLong / 128 + 2) << starts_first;
  }
}

TEST(Fairness, BackloggedTenantsGetEqualShares) {
  TurnFixture fixture(roomy_engine(8), {.max_batch_prefill_tokens = 256, .max_concurrent_requests = 10'000});
  // By tokens, not by requests: those of B are four times as long.
  std::vector<TurnRequest*> of_a, of_b;
  for (std::int64_t i = 0; i < 400; ++i) of_a.push_back(fixture.submit(of_tenant("a", request_of(10, 10, i))));
  for (std::int64_t i = 0; i < 400; ++i) of_b.push_back(fixture.submit(of_tenant("b", request_of(40, 40, i))));
  const auto served = [](const std::vector<TurnRequest*>& requests, std::int64_t tokens_each) {
    return tokens_each *
           std::count_if(requests.begin(), requests.end(), [](const auto* each) { return each->finished; });
  };
  while (served(of_a, 20) < 4000) fixture.turn();
  EXPECT_NEAR(static_cast<double>(served(of_b, 80)), 4000.0, 8 * 80.0);
}

TEST(Fairness, OneTenantIsServedInOrder) {
  TurnFixture fixture(roomy_engine(2), {.max_batch_prefill_tokens = 64});
  for (std::int64_t i = 0; i < 60; ++i) {
    Request request = request_of(5 + i % 20, 1 + i % 9, i);
    fixture.submit(i % 3 == 0 ? with_adapter(request, "a") : i % 3 == 1 ? with_adapter(request, "b") : request);
  }
  fixture.run_to_end();
  for (std::size_t i = 1; i < fixture.requests.size(); ++i) {
    EXPECT_LE(fixture.requests[i - 1]->first_token, fixture.requests[i]->first_token) << i;
  }
  fixture.expect_all_given_back();
}

TEST(Fairness, AnAdapterOfATenantDoesNotKeepAnotherOut) {
  TurnFixture fixture(roomy_engine(4), {.max_batch_prefill_tokens = 256, .max_concurrent_requests = 10'000});
  for (std::int64_t i = 0; i < 1000; ++i) fixture.submit(with_adapter(request_of(50, 50, i % 900), "hot"));
  TurnRequest* cold = fixture.submit(with_adapter(request_of(50, 50), "cold"));
  while (cold->first_token == 0) fixture.turn();
  const auto num_started = std::count_if(fixture.requests.begin(), fixture.requests.end(),
                                         [](const auto& each) { return each->num_tokens > 0; });
  EXPECT_GT(num_started, 1000 * 100 / kAdapterSlackTokens) << "order comes first";
  EXPECT_LT(num_started, kAdapterSlackTokens / 50 + 10);
}

TEST(Fairness, ALowPriorityIsNotStarvedByAStreamOfHigherOnes) {
  EngineInfo info = roomy_engine(4);
  info.num_blocks = 24;  // four that grow do not fit: the low one is preempted as well
  TurnFixture fixture(info, {.max_batch_prefill_tokens = 64, .max_concurrent_requests = 10'000},
                      {.device_bytes = BytePool::kAlignment, .host_bytes = 2 * BytePool::kAlignment});
  const auto submit_high = [&] {
    Request high = with_adapter(request_of(40, 70, fixture.num_turns % 900), "hot");
    high.priority = 7;
    fixture.submit(high);
  };
  for (int i = 0; i < 8; ++i) submit_high();
  fixture.turn();
  std::vector<TurnRequest*> low;
  for (const char* adapter : {"", "cold"}) {
    Request request = request_of(40, 70);
    if (*adapter != '\0') request = with_adapter(request, adapter);
    low.push_back(fixture.submit(request));
  }
  while (fixture.num_turns < 20'000 && !(low[0]->ended() && low[1]->ended())) {
    if (fixture.loop.stats().queued < 6) submit_high();
    fixture.turn();
    fixture.advance(milliseconds(10));
  }
  EXPECT_TRUE(low[0]->finished) << "for the base model";
  EXPECT_TRUE(low[1]->finished) << "for an adapter that finds no room";
  const SchedulerStats stats = fixture.loop.stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_LT(stats.finished, 150);
}

TEST(Fairness, ThousandsOfTenantsTakeTurnsAndAreForgotten) {
  TurnFixture fixture(roomy_engine(8), {.max_batch_prefill_tokens = 256, .max_concurrent_requests = 100'000});
  for (std::int64_t i = 0; i < 3000; ++i) fixture.submit(of_tenant("flood", request_of(4, 2, i % 900)));
  for (std::int64_t i = 0; i < 3000; ++i) {
    fixture.submit(of_tenant("tenant-" + std::to_string(i), request_of(4, 2, i % 900)));
  }
  fixture.run_to_end();
  std::int64_t last_of_others = 0;
  for (std::size_t i = 3000; i < 6000; ++i) {
    last_of_others = std::max(last_of_others, fixture.requests[i]->first_token);
  }
  EXPECT_LT(last_of_others, fixture.num_turns * 6 / 10) << "the flood waits until each of them had a turn";
  fixture.expect_all_given_back();
}

// --- limits ---

TEST(Admission, AQueueLongerThanItsLimitIsRefused) {
  TurnFixture fixture(roomy_engine(2), {.max_queue = 3});
  for (int i = 0; i < 5; ++i) ASSERT_NE(fixture.submit(request_of(5, 5)), nullptr) << "two may run, three wait";
  EXPECT_EQ(fixture.submit(request_of(5, 5)), nullptr);
  EXPECT_EQ(fixture.refusal.code, ErrorCode::kOverloaded);
  EXPECT_EQ(fixture.refusal.message, "3 requests are queued, the most that are allowed");
  fixture.turn();
  EXPECT_EQ(fixture.submit(request_of(5, 5)), nullptr);
  while (fixture.loop.stats().queued == 3) fixture.turn();
  EXPECT_NE(fixture.submit(request_of(5, 5)), nullptr);
  fixture.run_to_end();
  EXPECT_EQ(fixture.loop.stats().rejected.max_queue, 2);
  fixture.expect_all_given_back();
}

TEST(Admission, WithoutAQueueWhatCannotRunNowIsRefused) {
  TurnFixture fixture(roomy_engine(2), {.max_queue = 0});
  for (int round = 0; round < 3; ++round) {
    EXPECT_NE(fixture.submit(request_of(5, 5)), nullptr);
    EXPECT_NE(fixture.submit(request_of(5, 5)), nullptr);
    EXPECT_EQ(fixture.submit(request_of(5, 5)), nullptr);
    fixture.run_to_end();
  }
}

TEST(Admission, ATenantAtItsLimitLeavesTheOthersAlone) {
  TurnFixture fixture(roomy_engine(2), {.max_requests_per_tenant = 3});
  TurnRequest* cancelled = fixture.submit(of_tenant("a", request_of(5, 50)));
  for (int i = 0; i < 2; ++i) ASSERT_NE(fixture.submit(of_tenant("a", request_of(5, 5))), nullptr);
  EXPECT_EQ(fixture.submit(of_tenant("a", request_of(5, 5))), nullptr);
  EXPECT_EQ(fixture.refusal.message, "3 requests of this tenant are running or queued, the most that are allowed");
  EXPECT_NE(fixture.submit(of_tenant("b", request_of(5, 5))), nullptr);
  EXPECT_NE(fixture.submit(request_of(5, 5)), nullptr);
  fixture.turn();
  cancelled->stream->cancel();
  cancelled->stream->cancel();
  fixture.turn();
  EXPECT_NE(fixture.submit(of_tenant("a", request_of(5, 5))), nullptr);
  EXPECT_EQ(fixture.submit(of_tenant("a", request_of(5, 5))), nullptr) << "it came back once";
  cancelled->error = Error{};  // nothing more comes
  fixture.run_to_end();
  EXPECT_EQ(fixture.loop.stats().rejected.max_requests_per_tenant, 2);
  fixture.expect_all_given_back();
}

TEST(RequestTimeout, EndsWhatWaitsWhatLoadsAndWhatRuns) {
  TurnFixture fixture(roomy_engine(1), {.request_timeout = seconds(10)});
  TurnRequest* running = fixture.submit(with_adapter(request_of(5, 1000), "a"));
  TurnRequest* queued = fixture.submit(request_of(5, 5));
  TurnRequest* loading = fixture.submit(with_adapter(request_of(5, 5), "slow-b"));
  fixture.turn();
  fixture.advance(seconds(4));
  TurnRequest* later = fixture.submit(request_of(5, 5));
  fixture.turn();
  EXPECT_EQ(fixture.loop.deadline(), std::chrono::steady_clock::time_point(seconds(11)));
  fixture.advance(seconds(6) - milliseconds(1));
  fixture.turn();
  EXPECT_EQ(running->num_tokens, 3);
  fixture.advance(milliseconds(1));
  fixture.turn();
  for (const TurnRequest* overdue : {running, queued, loading}) {
    ASSERT_TRUE(overdue->error.has_value());
    EXPECT_EQ(overdue->error->code, ErrorCode::kTimeout);
  }
  EXPECT_EQ(running->num_tokens, 3);
  EXPECT_EQ(running->error->message, "the answer was not whole after 10 s");
  EXPECT_EQ(loading->error->message, "it was not started within 10 s");
  EXPECT_EQ(later->num_tokens, 1) << "its place came free in the same turn";
  fixture.run_to_end();
  EXPECT_TRUE(later->finished);
  const SchedulerStats stats = fixture.loop.stats();
  EXPECT_EQ(stats.timed_out_queued, 2);
  EXPECT_EQ(stats.timed_out_running, 1);
  EXPECT_EQ(stats.failed, 3);
  EXPECT_EQ(fixture.loop.deadline(), std::nullopt) << "an idle loop sleeps";
  fixture.expect_all_given_back();
}

TEST(RequestTimeout, ComesThoughNothingRuns) {
  test::SchedulerFixture fixture(small_engine(), {.request_timeout = milliseconds(30)});
  TestClient client = fixture.submit(with_adapter(request_of(5, 5), "slow-a"));
  client.wait_for_end();
  ASSERT_TRUE(client.error.has_value());
  EXPECT_EQ(client.error->code, ErrorCode::kTimeout);
  fixture.expect_all_given_back();
}

}  // namespace
}  // namespace shoal
