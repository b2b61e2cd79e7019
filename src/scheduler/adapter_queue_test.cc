// The rule by which requests get their adapters, with a hand-moved clock. The fake engine holds two small adapters.
#include "scheduler/adapter_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cache/block_allocator.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::request_of;
using test::with_adapter;

constexpr std::int64_t kUnit = BytePool::kAlignment;
constexpr milliseconds kCycle{1000};

class AdapterQueueTest : public testing::Test {
 protected:
  // "" is the base model.
  void add(const std::string& id, std::int32_t priority = 0) {
    Request request = id.empty() ? request_of(4, 1) : with_adapter(request_of(4, 1), id);
    request.priority = priority;
    auto stream = std::make_shared<EventStream>(nullptr, wakeup_);
    auto sequence = std::make_unique<Sequence>(std::move(request), stream, nullptr, BlockTable(allocator_));
    sequence->arrival = next_arrival_++;
    Sequence& added = queue_.add(std::move(sequence));
    if (id.empty()) return;
    const AdapterKey key{.id = id};
    added.pin = AdapterPin(engine_, key, engine_.adapter_version(key), added.place());
  }
  // Who may run `at` this time, by adapter; they stay in waiting_.
  std::vector<std::string> take(std::int64_t room, milliseconds at = milliseconds(0)) {
    std::vector<const Sequence*> before;
    for (const auto& sequence : waiting_) before.push_back(sequence.get());
    queue_.take_ready(AdapterQueue::Clock::time_point(at), room, waiting_);
    std::vector<std::string> taken;
    for (const auto& sequence : waiting_) {
      if (std::find(before.begin(), before.end(), sequence.get()) != before.end()) continue;
      taken.push_back(sequence->request.adapter ? sequence->request.adapter->id : "base");
    }
    return taken;
  }
  void end_first() { waiting_.erase(waiting_.begin()); }

  using Ids = std::vector<std::string>;
  Wakeup wakeup_;
  FakeEngine engine_{test::small_engine(), wakeup_, {.device_bytes = 3 * kUnit, .host_bytes = 20 * kUnit}};
  BlockAllocator allocator_{4, BlockOrder::kAscending, 1};
  AdapterQueue queue_{kCycle, 8};
  Sequences waiting_;
  std::int64_t next_arrival_ = 0;
};

TEST_F(AdapterQueueTest, KeepsTheOrderAndPinsNoMoreThanMayRun) {
  for (const char* id : {"a", "", "b", "a"}) add(id);
  EXPECT_EQ(take(2), (Ids{"a", "base"}));
  EXPECT_EQ(engine_.adapter_stats().tiers.pinned_bytes, kUnit) << "b is there, but may still make way";
  EXPECT_EQ(take(2), Ids{});
  end_first();
  EXPECT_EQ(take(2), Ids{"b"});
  EXPECT_EQ(queue_.num_waiting(), 1);
}

TEST_F(AdapterQueueTest, OneThatRunsFirstNeedsNoRoom) {
  add("a");
  EXPECT_EQ(take(1), Ids{"a"});
  add("b");
  add("b", /*priority=*/1);
  EXPECT_EQ(take(1), Ids{"b"});
  EXPECT_EQ(waiting_.front()->request.priority, 1);
}

TEST_F(AdapterQueueTest, OneThatLoadsIsPassed) {
  for (const char* id : {"slow-a", "b", ""}) add(id);
  EXPECT_EQ(take(3), (Ids{"b", "base"}));
  engine_.complete_load("slow-a");
  EXPECT_EQ(take(3), Ids{"slow-a"});
  EXPECT_EQ(waiting_.front()->request.adapter->id, "slow-a") << "in its place";
}

TEST_F(AdapterQueueTest, OneWithoutRoomIsPassedByWhatRunsForTheCycleTime) {
  add("a");
  EXPECT_EQ(take(9), Ids{"a"});
  for (const char* id : {"big-b", "a", "c", ""}) add(id);
  EXPECT_EQ(take(9), (Ids{"a", "base"})) << "c would take room that b waits for";
  add("a");
  EXPECT_EQ(take(9, kCycle - milliseconds(1)), Ids{"a"});
  add("a");
  add("");
  EXPECT_EQ(take(9, kCycle), Ids{"base"}) << "from now on a runs out";
  std::erase_if(waiting_, [](const auto& sequence) { return sequence->request.adapter.has_value(); });
  EXPECT_EQ(take(9, kCycle), Ids{"big-b"});
  EXPECT_EQ(take(9, kCycle), Ids{}) << "now a waits for b";
  std::erase_if(waiting_, [](const auto& sequence) { return sequence->request.adapter.has_value(); });
  EXPECT_EQ(take(9, 2 * kCycle), (Ids{"c", "a"}));
  EXPECT_GT(engine_.adapter_stats().tiers.device_evictions, 1);
}

}  // namespace
}  // namespace shoal
