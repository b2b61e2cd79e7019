#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/test_patience.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using test::eventually;
using test::request_of;
using test::small_engine;
using test::with_adapter;
using Fixture = test::SchedulerFixture;

TEST(Scheduler, OneRequestGetsItsTokensAndItsCounts) {
  Fixture fixture;
  const Request request = request_of(5, 7);
  TestClient client = fixture.submit(request);
  client.wait_for_end();
  EXPECT_EQ(client.tokens, fixture.engine.solo_tokens(request));
  ASSERT_TRUE(client.finish.has_value());
  EXPECT_EQ(client.finish->reason, FinishReason::kLength);
  EXPECT_EQ(client.finish->prompt_tokens, 5);
  EXPECT_EQ(client.finish->generated_tokens, 7);
  EXPECT_EQ(client.events.front().logprob, -1.5F);
  const RequestTimings& timings = client.finish->timings;
  EXPECT_LE(timings.submitted, timings.started);
  EXPECT_LE(timings.started, timings.first_token);
  EXPECT_LE(timings.first_token, timings.finished);
  const SchedulerStats stats = fixture.scheduler.stats();
  EXPECT_EQ(stats.steps, 7);
  EXPECT_EQ(stats.decode_steps, 6);
  EXPECT_EQ(stats.prefill.succeeded, 1);
  EXPECT_EQ(stats.decode.succeeded, 6);
  EXPECT_EQ(stats.prefill.failed + stats.decode.failed, 0);
  EXPECT_EQ(std::accumulate(stats.decode.seconds.counts.begin(), stats.decode.seconds.counts.end(), std::int64_t{0}),
            6);
  EXPECT_EQ(stats.next_size.counts[0], 1) << "one request was started alone";
  EXPECT_EQ(stats.joined_batches, 0);
  EXPECT_EQ(stats.prompt_tokens, 5);
  EXPECT_EQ(stats.generated_tokens, 7);
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.total_blocks, 64);
  fixture.expect_all_given_back();
}

TEST(Scheduler, OneTokenInAndOneOut) {
  Fixture fixture;
  const Request request = request_of(1, 1);
  TestClient client = fixture.submit(request);
  client.wait_for_end();
  EXPECT_EQ(client.tokens, fixture.engine.solo_tokens(request));
  EXPECT_EQ(fixture.scheduler.stats().decode_steps, 0);
  fixture.expect_all_given_back();
}

TEST(Scheduler, BatchedAndChunkedEqualsAlone) {
  // Budgets below, at and above a block; lengths around the block size.
  for (const std::int64_t budget : {1, 7, 16, 64, 256}) {
    Fixture fixture(small_engine(), {.max_batch_prefill_tokens = budget});
    std::vector<Request> requests;
    std::vector<TestClient> clients;
    for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 33, 48, 70, 2, 100}) {
      requests.push_back(request_of(length, 1 + length % 20, length * 13));
      if (length % 2 == 0) requests.back() = with_adapter(requests.back(), length % 4 == 0 ? "a" : "b");
      clients.push_back(fixture.submit(requests.back()));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      clients[i].wait_for_end();
      EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << "budget " << budget << " request " << i;
    }
    fixture.expect_all_given_back();
  }
}

TEST(Scheduler, NewRequestGetsItsFirstTokenWithinTwoStepsWhileOthersDecode) {
  Fixture fixture;
  fixture.engine.hold();
  std::vector<TestClient> running;
  for (int i = 0; i < 4; ++i) running.push_back(fixture.submit(request_of(20, 100, i * 100)));
  fixture.engine.wait_until_held();
  fixture.engine.allow(5);
  fixture.engine.wait_until_held();
  TestClient late = fixture.submit(request_of(30, 10, 7));
  fixture.engine.allow(2);  // the one that was planned before it came, and its own
  fixture.engine.wait_until_held();
  EXPECT_TRUE(eventually([&late] { return late.poll() || !late.tokens.empty(); }));
  EXPECT_EQ(late.tokens.size(), 1U);
  EXPECT_GE(fixture.scheduler.stats().joined_batches, 1);
  fixture.engine.resume();
  for (TestClient& client : running) client.wait_for_end();
  late.wait_for_end();
  fixture.expect_all_given_back();
}

TEST(Scheduler, LongPromptNeverStallsRunningStreams) {
  Fixture fixture(small_engine(), {.max_batch_prefill_tokens = 32});
  fixture.engine.record_steps();
  fixture.engine.hold();
  std::vector<TestClient> running;
  for (int i = 0; i < 3; ++i) running.push_back(fixture.submit(request_of(4, 60, i * 100)));
  fixture.engine.wait_until_held();
  fixture.engine.allow(2);
  fixture.engine.wait_until_held();
  TestClient long_prompt = fixture.submit(request_of(500, 3));
  fixture.engine.resume();
  for (TestClient& client : running) client.wait_for_end();
  long_prompt.wait_for_end();
  int mixed_steps = 0;
  for (const FakeEngine::StepRecord& record : fixture.engine.records()) {
    EXPECT_LE(record.query_tokens, 32) << "decode rows count in the budget";
    if (record.decode_rows == 3 && record.query_tokens == 32) ++mixed_steps;
  }
  EXPECT_GE(mixed_steps, 500 / 32) << "each chunk must leave room for the running streams";
  fixture.expect_all_given_back();
}

TEST(Scheduler, PromptsStartInOrder) {
  Fixture fixture(small_engine(), {.max_batch_prefill_tokens = 16});
  std::vector<TestClient> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(fixture.submit(request_of(20, 2, i)));
  for (TestClient& client : clients) client.wait_for_end();
  for (std::size_t i = 1; i < clients.size(); ++i) {
    EXPECT_LE(clients[i - 1].finish->timings.first_token, clients[i].finish->timings.first_token);
  }
}

TEST(Scheduler, HigherPriorityGoesFirst) {
  Fixture fixture(small_engine(), {.max_batch_prefill_tokens = 16});
  fixture.engine.hold();
  TestClient first = fixture.submit(request_of(16, 1));
  fixture.engine.wait_until_held();
  TestClient low = fixture.submit(request_of(16, 1, 2));
  Request urgent = request_of(16, 1, 3);
  urgent.priority = 1;
  TestClient high = fixture.submit(urgent);
  fixture.engine.resume();
  for (TestClient* client : {&first, &low, &high}) client->wait_for_end();
  EXPECT_LT(high.finish->timings.first_token, low.finish->timings.first_token);
}

TEST(Scheduler, PreemptionChangesNoToken) {
  for (const BlockOrder order : {BlockOrder::kAscending, BlockOrder::kShuffled}) {
    EngineInfo info = small_engine();
    info.num_blocks = 12;
    Fixture fixture(info, {.max_batch_prefill_tokens = 24, .block_order = order});
    std::vector<Request> requests;
    std::vector<TestClient> clients;
    for (int i = 0; i < 8; ++i) {
      requests.push_back(request_of(10 + i, 100, i * 50));
      requests.back().sampling.seed = static_cast<std::uint64_t>(i);
      if (i % 2 == 0) requests.back().sampling.repetition_penalty = 1.5F;
      if (i % 3 == 0) requests.back() = with_adapter(requests.back(), "a");
      clients.push_back(fixture.submit(requests.back()));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      clients[i].wait_for_end();
      EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << i;
      EXPECT_EQ(clients[i].finish->prompt_tokens, 10 + static_cast<std::int64_t>(i));
      EXPECT_EQ(clients[i].finish->generated_tokens, 100);
    }
    const SchedulerStats stats = fixture.scheduler.stats();
    EXPECT_GT(stats.preemptions, 3);
    EXPECT_EQ(stats.generated_tokens, 800);
    EXPECT_EQ(stats.prompt_tokens, 8 * 10 + 28) << "a recomputed prompt counts once";
    EXPECT_EQ(fixture.engine.num_poisoned() > 0, order == BlockOrder::kShuffled);
    fixture.expect_all_given_back();
  }
}

TEST(Scheduler, RequestThatFillsTheWholeCacheRunsAmongOthers) {
  EngineInfo info = small_engine();
  info.num_blocks = 10;
  Fixture fixture(info);
  std::vector<Request> requests{request_of(100, 60), request_of(150, 10), request_of(1, 159), request_of(3, 3)};
  std::vector<TestClient> clients;
  for (const Request& request : requests) clients.push_back(fixture.submit(request));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].wait_for_end();
    EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << i;
  }
  fixture.expect_all_given_back();
}

TEST(Scheduler, WhatCanNeverFitIsRefusedWithTheNumbers) {
  EngineInfo info = small_engine();
  info.num_blocks = 10;
  Fixture fixture(info, {.max_total_tokens = 1000});
  const TestClient too_big = fixture.submit(request_of(100, 61));
  ASSERT_FALSE(too_big.accepted());
  EXPECT_EQ(too_big.refusal().code, ErrorCode::kValidation);
  EXPECT_EQ(too_big.refusal().message,
            "100 `inputs` tokens and 61 `max_new_tokens` need 11 cache blocks of 16 tokens, more than the 10 that "
            "there are");
  const TestClient too_long = fixture.submit(request_of(1, 1000));
  ASSERT_FALSE(too_long.accepted());
  EXPECT_EQ(too_long.refusal().message,
            "`inputs` tokens + `max_new_tokens` must be <= 1000. Given: 1 `inputs` tokens and 1000 `max_new_tokens`");
  for (const std::int64_t max_new_tokens : {std::int64_t{0}, std::int64_t{-5}, INT64_MAX}) {
    EXPECT_FALSE(fixture.submit(request_of(2, max_new_tokens)).accepted());
  }
  EXPECT_FALSE(fixture.submit(request_of(0, 5)).accepted());
  Request with_stop = request_of(2, 2);
  with_stop.stop = {"x"};
  EXPECT_EQ(fixture.submit(with_stop).refusal().message, "`stop` needs a tokenizer");
  TestClient fits = fixture.submit(request_of(3, 4));
  fits.wait_for_end();
  EXPECT_TRUE(fits.finish.has_value());
  fixture.expect_all_given_back();
}

TEST(Scheduler, LongestSequenceOfTheModelIsALimitToo) {
  EngineInfo info = small_engine();
  info.max_positions = 20;
  Fixture fixture(info, {.max_total_tokens = 1000});
  EXPECT_FALSE(fixture.submit(request_of(10, 11)).accepted());
  TestClient fits = fixture.submit(request_of(10, 10));
  fits.wait_for_end();
  EXPECT_EQ(fits.tokens.size(), 10U);
}

TEST(Scheduler, OverloadIsRefusedAndPermitsComeBack) {
  Fixture fixture(small_engine(), {.max_concurrent_requests = 3});
  fixture.engine.hold();
  std::vector<TestClient> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(fixture.submit(request_of(5, 5, i)));
  const TestClient refused = fixture.submit(request_of(5, 5));
  ASSERT_FALSE(refused.accepted());
  EXPECT_EQ(refused.refusal().code, ErrorCode::kOverloaded);
  fixture.engine.resume();
  for (TestClient& client : clients) {
    client.wait_for_end();
    TestClient next = fixture.submit(request_of(5, 1));  // who saw the end may come again at once
    ASSERT_TRUE(next.accepted());
    next.wait_for_end();
  }
  fixture.expect_all_given_back();
}

TEST(Scheduler, MoreRequestsThanStateSlotsTakeTurns) {
  EngineInfo info = small_engine();
  info.max_sequences = 2;
  Fixture fixture(info);
  std::vector<Request> requests;
  std::vector<TestClient> clients;
  for (int i = 0; i < 9; ++i) {
    requests.push_back(request_of(3, 4, i * 10));
    requests.back().sampling.presence_penalty = 0.5F;
    clients.push_back(fixture.submit(requests.back()));
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].wait_for_end();
    EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i]));
  }
  fixture.expect_all_given_back();
}

}  // namespace
}  // namespace shoal
