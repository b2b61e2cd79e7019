// The order in which requests leave the queue, by hand: no engine, no batch.
#include "scheduler/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cache/block_allocator.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using test::request_of;
using test::with_adapter;

class FairQueueTest : public testing::Test {
 protected:
  void add(const std::string& tenant, const std::string& adapter = "", std::int64_t prompt_tokens = 10,
           std::int32_t priority = 0) {
    Request request = request_of(prompt_tokens, 1);
    if (!adapter.empty()) request = with_adapter(request, adapter);
    request.tenant = tenant;
    request.priority = priority;
    auto sequence = std::make_unique<Sequence>(std::move(request), std::make_shared<EventStream>(nullptr, wakeup_),
                                               nullptr, BlockTable(allocator_));
    sequence->arrival = next_arrival_++;
    queue_.add(std::move(sequence));
  }
  // The next so many, in order, whoever `passes` left out. They stay open until finish_taken().
  std::vector<const Sequence*> take(std::size_t count, const std::string& passes = "nobody") {
    std::vector<const Sequence*> taken;
    queue_.walk({.ask =
                     [&](Sequence& sequence) {
                       ++num_asked_;
                       if (taken.size() == count) return Offer::kStop;
                       const auto& adapter = sequence.request.adapter;
                       return adapter && adapter->id == passes ? Offer::kPass : Offer::kTake;
                     },
                 .give =
                     [&](std::unique_ptr<Sequence> sequence) {
                       queue_.note_start(*sequence);
                       taken.push_back(sequence.get());
                       taken_.push_back(std::move(sequence));
                     }});
    return taken;
  }
  std::string take_tenants(std::size_t count) {
    std::string tenants;
    for (const Sequence* sequence : take(count)) tenants += sequence->request.tenant;
    return tenants;
  }
  void finish_taken() {
    for (const auto& sequence : taken_) queue_.close(*sequence);
    taken_.clear();
  }

  Wakeup wakeup_;
  BlockAllocator allocator_{4, BlockOrder::kAscending, 1};
  FairQueue queue_;
  Sequences taken_;
  std::int64_t next_arrival_ = 0;
  std::int64_t num_asked_ = 0;
};

TEST_F(FairQueueTest, TenantsAlternateByTokens) {
  for (int i = 0; i < 8; ++i) add("a", "", 10);
  for (int i = 0; i < 4; ++i) add("b", "", 20);
  EXPECT_EQ(take_tenants(12), "ababaabaabaa") << "where both stand alike, the one with fewer requests before goes";
}

TEST_F(FairQueueTest, WhatIsGeneratedCountsToo) {
  for (int i = 0; i < 6; ++i) add("a");
  for (int i = 0; i < 6; ++i) add("b");
  ASSERT_EQ(take_tenants(2), "ab");
  queue_.charge(*taken_[0], 30);
  EXPECT_EQ(take_tenants(4), "bbba") << "a and b stand at 40 each, and a came first";
}

TEST_F(FairQueueTest, WhoStaysAwaySavesUpALittle) {
  constexpr std::int64_t kTokens = 200;
  constexpr std::int64_t kSaved = kSavedTokens / kTokens + 1;
  add("b", "", kTokens);
  for (int i = 0; i < 200; ++i) add("a", "", kTokens);
  take(100);
  for (int i = 0; i < 60; ++i) add("b", "", kTokens);
  const std::string order = take_tenants(60);
  EXPECT_EQ(order.find('a'), static_cast<std::size_t>(kSaved)) << order;
  EXPECT_EQ(std::count(order.begin() + kSaved, order.end(), 'b'), (60 - kSaved) / 2) << order;
}

// Else bursts with pauses between them would be served before all others.
TEST_F(FairQueueTest, WhatWasSavedIsSpentOnce) {
  constexpr std::int64_t kTokens = 200;
  for (int i = 0; i < 200; ++i) add("a", "", kTokens);
  take(100);
  std::string order;
  for (int burst = 0; burst < 6; ++burst) {
    for (int i = 0; i < 5; ++i) add("b", "", kTokens);
    const std::string taken = take_tenants(10);
    order += taken;
    finish_taken();  // b has no requests left, or few
  }
  const auto num_b = std::count(order.begin(), order.end(), 'b');
  EXPECT_GE(num_b, kSavedTokens / kTokens);
  EXPECT_LE(num_b, (60 + kSavedTokens / kTokens) / 2 + 1) << order;
}

TEST_F(FairQueueTest, AFewRequestsOfWhoSentLittleTakeRoundsThatItDidNotUse) {
  for (int i = 0; i < 100; ++i) add("a");
  take(50);
  const std::int64_t started = taken_.back()->round;
  for (int i = 0; i < 20; ++i) add("b");
  std::vector<std::int64_t> rounds;
  std::int64_t num_saved = 0;
  for (const Sequence* sequence : take(20)) {
    ASSERT_EQ(sequence->request.tenant, "b") << "they cost little";
    rounds.push_back(sequence->round);
    num_saved += sequence->in_saved_round ? 1 : 0;
  }
  EXPECT_TRUE(std::is_sorted(rounds.begin(), rounds.end()));
  EXPECT_EQ(std::adjacent_find(rounds.begin(), rounds.end()), rounds.end()) << "one a round";
  EXPECT_EQ(rounds.front(), started - kSavedRounds);
  EXPECT_EQ(num_saved, kSavedRounds);
}

TEST_F(FairQueueTest, WhoWasServedMoreStillWasWhenItComesBack) {
  add("a");
  for (int i = 0; i < 30; ++i) add("b");
  take(2);
  queue_.charge(*taken_[0], 100);
  queue_.close(*taken_[0]);
  taken_.erase(taken_.begin());
  add("a");
  EXPECT_EQ(take_tenants(12), "bbbbbbbbbbab");
}

TEST_F(FairQueueTest, AnEmptyQueueForgetsEverybody) {
  add("a", "x", 500);
  add("b", "", 10, 3);
  take(2);
  EXPECT_EQ(queue_.num_levels(), 2U);
  finish_taken();
  EXPECT_EQ(queue_.num_levels(), 0U);
  add("a");
  add("b");
  EXPECT_EQ(take_tenants(2), "ab");
  finish_taken();
}

TEST_F(FairQueueTest, AdaptersOfATenantGoInOrderUntilOneIsFarAhead) {
  for (int i = 0; i < 30; ++i) add("t", "hot", 1000);
  for (int i = 0; i < 3; ++i) add("t", "cold", 1000);
  std::string order;
  for (const Sequence* sequence : take(15)) order += sequence->request.adapter->id[0];
  EXPECT_EQ(order, "hhhhhhhhhchchch");
}

TEST_F(FairQueueTest, ManyAdaptersGetATenantNoMore) {
  for (int i = 0; i < 50; ++i) add("a", "adapter-" + std::to_string(i));
  for (int i = 0; i < 50; ++i) add("b");
  EXPECT_EQ(take_tenants(10), "ababababab");
}

TEST_F(FairQueueTest, AnAdapterThatIsNotReadyIsPassedAtOnceForAllItsRequests) {
  for (int i = 0; i < 500; ++i) add("a", "slow");
  for (int i = 0; i < 3; ++i) add("a", "x");
  add("b");
  EXPECT_EQ(take(500, "slow").size(), 4U);
  EXPECT_EQ(num_asked_, 5);
  EXPECT_EQ(queue_.num_waiting(), 500);
  EXPECT_EQ(take(500).size(), 500U) << "the next walk sees them again";
}

TEST_F(FairQueueTest, PrioritiesGoFirstButNobodyStarves) {
  for (int i = 0; i < 3; ++i) add("l");
  for (int i = 0; i < 100; ++i) add("h", "", 10, 5);
  add("m", "", 10, 2);
  const std::string order = take_tenants(104);
  EXPECT_EQ(order.find_first_of("lm"), static_cast<std::size_t>(kMaxPassed)) << order;
  EXPECT_LE(order.find('m'), static_cast<std::size_t>(kMaxPassed + 1)) << order;
  EXPECT_LT(order.rfind('l'), static_cast<std::size_t>(4 * kMaxPassed)) << order;
  finish_taken();
  EXPECT_EQ(queue_.num_levels(), 0U);
}

// Else each would wait for the other: for its turn in the line, and for its place's turn to have the adapter's room.
TEST_F(FairQueueTest, OneFromALowerPriorityHasAPlaceBeforeThoseItIsPutBefore) {
  add("a", "x", 10, 0);
  for (std::int64_t i = 0; i < kMaxPassed; ++i) add("b", "", 10, 5);
  for (int i = 0; i < 3; ++i) add("a", "x", 10, 5);
  EXPECT_EQ(take(static_cast<std::size_t>(kMaxPassed), "x").size(), static_cast<std::size_t>(kMaxPassed));
  QueuePlace first{.priority = -1};
  std::int64_t num_waiting = 0;
  queue_.for_each([&](Sequence& sequence) {
    ++num_waiting;
    first = std::min(first, sequence.place());
  });
  EXPECT_EQ(num_waiting, 4);
  EXPECT_EQ(first.priority, 5);
  EXPECT_EQ(first.arrival, 0);
  const std::vector<const Sequence*> taken = take(4);
  ASSERT_EQ(taken.size(), 4U);
  EXPECT_EQ(taken.front()->arrival, 0);
  finish_taken();
  EXPECT_EQ(queue_.num_levels(), 0U);
}

TEST_F(FairQueueTest, ThousandsOfTenantsCostNoWalkOverAll) {
  constexpr int kTenants = 5000;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kTenants; ++i) add("tenant-" + std::to_string(i));
  }
  std::map<std::string, int> turns;
  for (int i = 0; i < kTenants; ++i) {
    for (const Sequence* sequence : take(1)) ++turns[sequence->request.tenant];
  }
  EXPECT_EQ(turns.size(), static_cast<std::size_t>(kTenants)) << "each had one turn before any had two";
  EXPECT_EQ(num_asked_, 2 * kTenants);
}

TEST_F(FairQueueTest, EndedRequestsLeaveFromAnywhere) {
  for (const char* adapter : {"x", "y", "x", "x", "y"}) add("a", adapter);
  add("b");
  int index = 0;
  queue_.for_each([&](Sequence& sequence) { sequence.ended = sequence.arrival % 2 == 0 && ++index > 0; });
  ASSERT_EQ(index, 3);
  Sequences ended;
  queue_.take_ended(ended);
  EXPECT_EQ(ended.size(), 3U);
  for (const auto& sequence : ended) queue_.close(*sequence);
  std::vector<std::int64_t> left;
  for (const Sequence* sequence : take(10)) left.push_back(sequence->arrival);
  EXPECT_EQ(left, (std::vector<std::int64_t>{5, 1, 3})) << "b's is its first";
  finish_taken();
  EXPECT_EQ(queue_.num_levels(), 0U);
}

TEST(FairShares, NamesAloneTakeNoMoreAndMoreMemory) {
  FairShares<int> shares({.slack = 0, .saved = 1000});
  shares.open("stays, and never waits");
  std::int64_t arrival = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto& guest = shares.open("guest-" + std::to_string(i));
    shares.set_first(guest, QueuePlace{.arrival = ++arrival});
    shares.set_first(guest, std::nullopt);
    shares.charge(guest, 1);
    shares.close(guest);
    ASSERT_LT(shares.num_members(), 5000U);
  }
}

TEST(FairShares, MembersThatComeAndGoAreForgottenWhileOneStays) {
  constexpr std::int64_t kSaved = 1000;
  FairShares<int> shares({.slack = 0, .saved = kSaved});
  auto& stays = shares.open("stays");
  std::int64_t arrival = 0;
  shares.set_first(stays, QueuePlace{.arrival = ++arrival});
  for (int i = 0; i < 10'000; ++i) {
    auto& guest = shares.open("guest-" + std::to_string(i));
    shares.set_first(guest, QueuePlace{.arrival = ++arrival});
    shares.set_first(guest, std::nullopt);
    shares.charge(guest, 10);
    shares.close(guest);
    shares.charge(stays, 10);
    EXPECT_LT(shares.num_members(), 5U + kSaved / 10);
  }
}

}  // namespace
}  // namespace shoal
