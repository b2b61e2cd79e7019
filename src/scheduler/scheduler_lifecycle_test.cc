#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/test_patience.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::eventually;
using test::kPatience;
using test::request_of;
using test::small_engine;
using test::with_adapter;
using Fixture = test::SchedulerFixture;

TEST(SchedulerLifecycle, SlowAdapterDelaysNobodyElse) {
  Fixture fixture;
  const Request waits = with_adapter(request_of(5, 5), "slow-a");
  TestClient slow = fixture.submit(waits);
  std::vector<TestClient> others;
  for (int i = 0; i < 20; ++i) others.push_back(fixture.submit(with_adapter(request_of(5, 5, i), "b")));
  for (TestClient& client : others) {
    client.wait_for_end();
    EXPECT_TRUE(client.finish.has_value());
  }
  EXPECT_FALSE(slow.poll());
  EXPECT_TRUE(slow.tokens.empty());
  EXPECT_EQ(fixture.scheduler.stats().queued, 1);
  EXPECT_EQ(fixture.engine.num_pins("slow-a"), 1);
  fixture.engine.complete_load("slow-a");
  slow.wait_for_end();
  EXPECT_EQ(slow.tokens, fixture.engine.solo_tokens(waits));
  fixture.expect_all_given_back();
}

Request load_of(const std::string& adapter) {
  Request load = with_adapter({}, adapter);
  load.load_only = true;
  return load;
}

TEST(SchedulerLifecycle, ALoadEndsWithItsAdapterAndRunsInNoStep) {
  Fixture fixture;
  TestClient quick = fixture.submit(load_of("a"));
  quick.wait_for_end();
  ASSERT_TRUE(quick.finish.has_value());
  EXPECT_EQ(quick.finish->generated_tokens, 0);
  TestClient slow = fixture.submit(load_of("slow-a"));
  TestClient failing = fixture.submit(load_of("slow-b"));
  TestClient cancelled = fixture.submit(load_of("slow-c"));
  const Request runs = with_adapter(request_of(5, 20), "a");
  TestClient other = fixture.submit(runs);
  other.wait_for_end();
  EXPECT_EQ(other.tokens, fixture.engine.solo_tokens(runs));
  EXPECT_FALSE(slow.poll());
  ASSERT_TRUE(eventually([&] { return fixture.engine.num_pins("slow-c") == 1; }));
  cancelled.cancel();
  ASSERT_TRUE(eventually([&] { return fixture.engine.num_pins("slow-c") == 0; }));
  const std::int64_t steps = fixture.scheduler.stats().steps;
  fixture.engine.complete_load("slow-a");
  slow.wait_for_end();
  EXPECT_TRUE(slow.finish.has_value());
  fixture.engine.fail_load("slow-b", {ErrorCode::kAdapterInvalid, "broken"});
  failing.wait_for_end();
  ASSERT_TRUE(failing.error.has_value());
  EXPECT_EQ(failing.error->message, "broken");
  EXPECT_EQ(fixture.scheduler.stats().steps, steps);
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, ALoadNeedsNoRoomBesideAdaptersThatRun) {
  Wakeup wakeup;
  FakeEngine engine(small_engine(), wakeup, {.device_bytes = BytePool::kAlignment, .host_bytes = 1 << 20});
  Scheduler scheduler(engine, wakeup, nullptr, {});
  engine.hold();
  TestClient running(scheduler, with_adapter(request_of(5, 3), "a"));
  engine.wait_until_held();
  std::vector<TestClient> loads;
  for (const char* id : {"b", "c", "d"}) loads.emplace_back(scheduler, load_of(id));
  engine.allow(1);  // the news are taken between two steps
  for (TestClient& load : loads) {
    load.wait_for_end();
    EXPECT_TRUE(load.finish.has_value());
  }
  EXPECT_FALSE(running.poll()) << "its adapter fills the device";
  engine.resume();
  running.wait_for_end();
}

TEST(SchedulerLifecycle, ALoadWithAPromptOrWithoutAdapterIsRefused) {
  Fixture fixture;
  Request prompted = load_of("a");
  prompted.prompt_ids = {1};
  EXPECT_FALSE(fixture.submit(prompted).accepted());
  Request base;
  base.load_only = true;
  EXPECT_FALSE(fixture.submit(base).accepted());
}

TEST(SchedulerLifecycle, ReadyAdapterKeepsItsPlaceInTheQueue) {
  EngineInfo info = small_engine();
  info.max_sequences = 1;
  Fixture fixture(info);
  fixture.engine.hold();
  TestClient running = fixture.submit(request_of(5, 3));
  fixture.engine.wait_until_held();
  TestClient slow = fixture.submit(with_adapter(request_of(5, 3), "slow-a"));
  TestClient later = fixture.submit(request_of(5, 3, 9));
  ASSERT_TRUE(eventually([&] {
    fixture.engine.allow(1);
    fixture.engine.wait_until_held();
    return fixture.engine.num_pins("slow-a") == 1;
  }));
  fixture.engine.complete_load("slow-a");
  fixture.engine.resume();
  for (TestClient* client : {&running, &slow, &later}) client->wait_for_end();
  EXPECT_LT(slow.finish->timings.started, later.finish->timings.started) << "it was submitted first";
}

TEST(SchedulerLifecycle, FailedAdapterEndsOnlyItsOwnRequests) {
  Fixture fixture;
  TestClient bad = fixture.submit(with_adapter(request_of(5, 5), "slow-bad"));
  TestClient also_bad = fixture.submit(with_adapter(request_of(6, 5), "slow-bad"));
  const Request fine = with_adapter(request_of(5, 200), "a");
  TestClient good = fixture.submit(fine);
  ASSERT_TRUE(eventually([&] { return fixture.engine.num_pins("slow-bad") == 2; }));
  fixture.engine.fail_load("slow-bad", {ErrorCode::kAdapterNotFound, "no adapter `slow-bad`"});
  for (TestClient* client : {&bad, &also_bad}) {
    client->wait_for_end();
    ASSERT_TRUE(client->error.has_value());
    EXPECT_EQ(client->error->code, ErrorCode::kAdapterNotFound);
    EXPECT_EQ(client->error->message, "no adapter `slow-bad`");
  }
  good.wait_for_end();
  EXPECT_EQ(good.tokens, fixture.engine.solo_tokens(fine));
  EXPECT_EQ(fixture.scheduler.stats().failed, 2);
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, CancelWhileTheAdapterLoads) {
  Fixture fixture;
  TestClient client = fixture.submit(with_adapter(request_of(5, 5), "slow-a"));
  ASSERT_TRUE(eventually([&] { return fixture.engine.num_pins("slow-a") == 1; }));
  client.cancel();
  client.cancel();
  EXPECT_TRUE(eventually([&] { return fixture.scheduler.stats().cancelled == 1; }));
  fixture.expect_all_given_back();
  fixture.engine.complete_load("slow-a");
  EXPECT_FALSE(client.poll());
}

TEST(SchedulerLifecycle, CancelWithinOneStepWhileQueuedInPrefillAndInDecode) {
  EngineInfo info = small_engine();
  info.max_sequences = 2;
  Fixture fixture(info, {.max_batch_prefill_tokens = 16});
  fixture.engine.hold();
  TestClient decoding = fixture.submit(with_adapter(request_of(4, 100), "a"));
  fixture.engine.wait_until_held();
  TestClient prefilling = fixture.submit(with_adapter(request_of(200, 5), "b"));
  TestClient queued = fixture.submit(with_adapter(request_of(5, 5), "c"));
  fixture.engine.allow(3);
  fixture.engine.wait_until_held();
  EXPECT_EQ(fixture.scheduler.stats().running, 2);
  EXPECT_EQ(fixture.scheduler.stats().queued, 1);
  for (TestClient* client : {&decoding, &prefilling, &queued}) client->cancel();
  fixture.engine.allow(1);  // the step that was planned already
  ASSERT_TRUE(eventually([&] { return fixture.scheduler.stats().cancelled == 3; }));
  EXPECT_EQ(fixture.scheduler.stats().steps, 4) << "no further step for what nobody reads";
  fixture.expect_all_given_back();
  for (TestClient* client : {&decoding, &prefilling, &queued}) EXPECT_FALSE(client->poll());
  fixture.engine.resume();
  TestClient next = fixture.submit(request_of(4, 4));
  next.wait_for_end();
  EXPECT_TRUE(next.finish.has_value());
}

TEST(SchedulerLifecycle, CancelAfterTheEndIsHarmless) {
  Fixture fixture;
  TestClient client = fixture.submit(request_of(4, 4));
  client.wait_for_end();
  client.cancel();
  TestClient next = fixture.submit(request_of(4, 4));
  next.wait_for_end();
  EXPECT_EQ(fixture.scheduler.stats().cancelled, 0);
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, RowOfNanFailsItsOwnRequestOnly) {
  Fixture fixture;
  Request broken = request_of(5, 50);
  broken.sampling.seed = FakeEngine::kNanSeed;
  const Request fine = request_of(6, 50, 3);
  fixture.engine.hold();
  TestClient bad = fixture.submit(broken);
  TestClient good = fixture.submit(fine);
  fixture.engine.resume();
  bad.wait_for_end();
  good.wait_for_end();
  ASSERT_TRUE(bad.error.has_value());
  EXPECT_EQ(bad.error->code, ErrorCode::kGeneration);
  EXPECT_EQ(static_cast<std::int64_t>(bad.tokens.size()), FakeEngine::kNanLength - 5);
  EXPECT_EQ(good.tokens, fixture.engine.solo_tokens(fine));
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, FailedStepEndsItsBatchAndServesOn) {
  EngineInfo info = small_engine();
  info.max_sequences = 2;
  Fixture fixture(info);
  fixture.engine.hold();
  TestClient first = fixture.submit(with_adapter(request_of(5, 50), "a"));
  fixture.engine.wait_until_held();
  TestClient second = fixture.submit(request_of(5, 50));
  const Request later = with_adapter(request_of(5, 50, 7), "a");
  TestClient third = fixture.submit(later);  // still queued when the step fails
  fixture.engine.allow(2);
  fixture.engine.wait_until_held();
  fixture.engine.fail_next_step("the device is gone");
  fixture.engine.resume();
  for (TestClient* client : {&first, &second}) {
    client->wait_for_end();
    ASSERT_TRUE(client->error.has_value());
    EXPECT_EQ(client->error->code, ErrorCode::kGeneration);
    EXPECT_EQ(client->error->message, "the device is gone");
  }
  third.wait_for_end();
  EXPECT_EQ(third.tokens, fixture.engine.solo_tokens(later));
  EXPECT_EQ(fixture.scheduler.stats().failed, 2);
  EXPECT_EQ(fixture.scheduler.stats().decode.failed, 1);
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, DrainEndsRunningStreamsAndTakesNoNewOnes) {
  Fixture fixture;
  fixture.engine.hold();
  TestClient running = fixture.submit(request_of(5, 50));
  TestClient gone = fixture.submit(request_of(5, 50, 2));
  fixture.engine.wait_until_held();
  EXPECT_FALSE(fixture.scheduler.drain(milliseconds(1)));
  const TestClient refused = fixture.submit(request_of(5, 5));
  ASSERT_FALSE(refused.accepted());
  EXPECT_EQ(refused.refusal().code, ErrorCode::kUnavailable);
  gone.cancel();
  fixture.engine.resume();
  EXPECT_TRUE(fixture.scheduler.drain(kPatience));
  EXPECT_TRUE(running.poll()) << "its last event was sent before drain returned";
  EXPECT_EQ(running.tokens.size(), 50U);
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, ShutdownTellsEveryStream) {
  Wakeup wakeup;
  FakeEngine engine(small_engine(), wakeup);
  std::vector<TestClient> clients;
  std::optional<Scheduler> scheduler(std::in_place, engine, wakeup, nullptr, SchedulerOptions{});
  engine.hold();
  clients.emplace_back(*scheduler, with_adapter(request_of(5, 4000 / 8), "a"));
  engine.wait_until_held();
  clients.emplace_back(*scheduler, with_adapter(request_of(5, 5), "slow-b"));
  for (int i = 0; i < 10; ++i) clients.emplace_back(*scheduler, request_of(5, 500, i));
  engine.allow(3);
  engine.wait_until_held();
  auto shutdown = std::async(std::launch::async, [&scheduler] { scheduler.reset(); });
  // The loop may have looked for the stop just before it came, so that a step more is held, and needs a hand.
  while (shutdown.wait_for(milliseconds(2)) != std::future_status::ready) engine.allow(1);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    ASSERT_TRUE(clients[i].poll()) << i;
    ASSERT_TRUE(clients[i].error.has_value()) << i;
    EXPECT_EQ(clients[i].error->code, clients[i].tokens.empty() ? ErrorCode::kUnavailable : ErrorCode::kIncomplete)
        << i;
  }
  EXPECT_FALSE(clients[0].tokens.empty());
  EXPECT_TRUE(clients[1].tokens.empty());
  EXPECT_EQ(engine.num_pins(), 0);
}

TEST(SchedulerLifecycle, HangingStepIsNoProgress) {
  Fixture fixture;
  EXPECT_TRUE(fixture.scheduler.making_progress(milliseconds(0))) << "idle is not hanging";
  fixture.engine.hold();
  TestClient client = fixture.submit(request_of(5, 5));
  fixture.engine.wait_until_held();
  EXPECT_TRUE(fixture.scheduler.making_progress(kPatience));
  EXPECT_TRUE(eventually([&] { return !fixture.scheduler.making_progress(milliseconds(2)); }));
  fixture.engine.resume();
  client.wait_for_end();
  EXPECT_TRUE(fixture.scheduler.making_progress(milliseconds(0)));
}

TEST(SchedulerLifecycle, AReplacedAdapterServesTheNextRequestAndOldStreamsKeepTheirs) {
  Fixture fixture;
  const Request request = with_adapter(request_of(5, 50), "a");
  const std::vector<std::int64_t> old_tokens = fixture.engine.solo_tokens(request);
  fixture.engine.hold();
  TestClient before = fixture.submit(request);
  fixture.engine.wait_until_held();
  fixture.engine.replace_adapter("a");
  TestClient after = fixture.submit(request);
  fixture.engine.resume();
  for (TestClient* client : {&before, &after}) client->wait_for_end();
  EXPECT_EQ(before.tokens, old_tokens);
  EXPECT_NE(after.tokens, old_tokens);
  EXPECT_EQ(after.tokens, fixture.engine.solo_tokens(request));
  fixture.expect_all_given_back();
}

TEST(SchedulerLifecycle, AColdAdapterGetsItsTurnBesideHotOnes) {
  Wakeup wakeup;
  FakeEngine engine(small_engine(), wakeup,
                    {.device_bytes = 3 * BytePool::kAlignment, .host_bytes = 20 * BytePool::kAlignment});
  Scheduler scheduler(engine, wakeup, nullptr, {.adapter_cycle_time = milliseconds(20)});
  std::vector<TestClient> hot;
  const auto submit_hot = [&] {
    hot.emplace_back(scheduler, with_adapter(request_of(5, 40), hot.size() % 2 == 0 ? "a" : "b"));
  };
  for (int i = 0; i < 20; ++i) submit_hot();
  TestClient cold(scheduler, with_adapter(request_of(5, 5), "big-cold"));
  // There are always twenty more of them, as soon as one ends.
  const auto begin = std::chrono::steady_clock::now();
  while (!cold.poll() && std::chrono::steady_clock::now() - begin < kPatience) {
    for (std::size_t i = hot.size() - 20; i < hot.size(); ++i) {
      if (hot[i].poll()) submit_hot();
    }
    std::this_thread::yield();
  }
  EXPECT_TRUE(cold.finish.has_value());
  for (TestClient& client : hot) {
    client.wait_for_end();
    EXPECT_TRUE(client.finish.has_value());
  }
}

TEST(SchedulerLifecycle, StaysAsleepWhileAnAdapterLoads) {
  Fixture fixture;
  TestClient client = fixture.submit(with_adapter(request_of(5, 5), "slow-a"));
  ASSERT_TRUE(eventually([&] { return fixture.engine.num_pins("slow-a") == 1; }));
  const auto cpu_before = std::clock();
  std::this_thread::sleep_for(milliseconds(50));
  const double cpu_ms = 1000.0 * static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC;
  EXPECT_LT(cpu_ms, 20.0) << "a loop that polls would have burnt all 50";
  fixture.engine.complete_load("slow-a");
  client.wait_for_end();
  fixture.expect_all_given_back();
}

}  // namespace
}  // namespace shoal
