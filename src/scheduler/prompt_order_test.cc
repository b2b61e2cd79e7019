#include "scheduler/prompt_order.h"

#include <gtest/gtest.h>

#include <memory>

#include "cache/block_allocator.h"
#include "scheduler/fair_queue.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;
using Listed = PromptOrder::Listed;

struct Fixture {
  Sequence& add(Sequences& to, const std::string& tenant, std::int64_t num_tokens, std::int32_t priority = 0) {
    Request request;
    request.prompt_ids.assign(static_cast<std::size_t>(num_tokens), 1);
    request.tenant = tenant;
    request.priority = priority;
    auto sequence = std::make_unique<Sequence>(std::move(request), std::make_shared<EventStream>(nullptr, wakeup),
                                               nullptr, BlockTable(allocator));
    Sequence& added = *sequence;
    added.arrival = next_arrival++;
    added.came_alone = true;
    insert_in_order(to, std::move(sequence));
    return added;
  }
  // Arrivals, in the order of prompts.
  Ids list(Listed listed = Listed::kAll) {
    order.list(running, waiting, listed);
    Ids arrivals;
    for (const PromptOrder::Prompt& prompt : order.prompts()) arrivals.push_back(prompt.sequence->arrival);
    return arrivals;
  }

  Wakeup wakeup;
  BlockAllocator allocator{1, BlockOrder::kAscending, 0};
  Sequences running, waiting;
  std::int64_t next_arrival = 0;
  PromptOrder order;
};

TEST(PromptOrder, OneTenantKeepsItsOrder) {
  Fixture fixture;
  fixture.add(fixture.running, "a", 900);
  fixture.add(fixture.running, "a", 5);
  fixture.add(fixture.waiting, "a", 300);
  fixture.add(fixture.waiting, "a", 1);
  EXPECT_EQ(fixture.list(), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(fixture.list(Listed::kRunning), (Ids{0, 1}));
  fixture.running[0]->num_cached = 899;
  EXPECT_EQ(fixture.list(), (Ids{1, 2, 3})) << "one that decodes is no prompt";
}

TEST(PromptOrder, AShortPromptGoesBeforeTheRestOfAnotherTenantsLongOne) {
  Fixture fixture;
  fixture.add(fixture.running, "a", 900);
  fixture.add(fixture.waiting, "a", 10);
  fixture.add(fixture.waiting, "b", 100);
  fixture.add(fixture.waiting, "b", 100);
  EXPECT_EQ(fixture.list(), (Ids{2, 3, 0, 1})) << "the short one of a waits for its own long one";
  fixture.running[0]->num_cached = 750;
  EXPECT_EQ(fixture.list(), (Ids{2, 0, 1, 3}))
      << "150, 160 and 200 tokens: as they would end if both were computed at once";
}

TEST(PromptOrder, AFloodOvertakesNobody) {
  Fixture fixture;
  fixture.add(fixture.running, "a", 900);
  for (int i = 0; i < 3; ++i) fixture.add(fixture.waiting, "b", 10).came_alone = false;
  EXPECT_EQ(fixture.list(), (Ids{0, 1, 2, 3}));
  fixture.add(fixture.waiting, "c", 100);
  EXPECT_EQ(fixture.list(), (Ids{4, 0, 1, 2, 3})) << "but stands behind who sends little";
}

TEST(PromptOrder, ASavedRoundGoesBeforeLaterOnes) {
  Fixture fixture;
  fixture.add(fixture.running, "a", 50);
  fixture.add(fixture.running, "c", 50);
  fixture.running[0]->round = 4;
  fixture.running[1]->round = 6;
  for (int i = 0; i < 3; ++i) fixture.add(fixture.waiting, "b", 900);
  for (int i = 0; i < 3; ++i) {
    Sequence& added = *fixture.waiting[static_cast<std::size_t>(i)];
    added.round = 3 + i;
    added.came_alone = i == 0;
    added.in_saved_round = i < 2;
  }
  EXPECT_EQ(fixture.list(), (Ids{2, 0, 3, 1, 4})) << "rounds 3, 4 and 4, 6, but what saved no round waits";
}

TEST(PromptOrder, PromptsOfEqualLengthKeepTheirOrder) {
  Fixture fixture;
  for (const char* tenant : {"c", "a", "b"}) fixture.add(fixture.waiting, tenant, 500);
  EXPECT_EQ(fixture.list(), (Ids{0, 1, 2})) << "one after the other, not all of them late";
}

TEST(PromptOrder, PriorityGoesFirst) {
  Fixture fixture;
  fixture.add(fixture.running, "a", 50);
  fixture.add(fixture.waiting, "b", 10);
  fixture.add(fixture.waiting, "c", 800, 1);
  fixture.add(fixture.waiting, "a", 700, 1);
  EXPECT_EQ(fixture.list(), (Ids{3, 2, 1, 0})) << "750, 800, then 10 and 50 of the lower priority";
}

TEST(PromptOrder, NobodyIsOvertakenForEver) {
  Fixture fixture;
  const Sequence& runs = fixture.add(fixture.running, "a", 900);
  const Sequence& waits = fixture.add(fixture.waiting, "b", 800);
  const Sequence& is_short = fixture.add(fixture.waiting, "c", 10);
  for (std::int64_t i = 0; i < kMaxPassed; ++i) {
    EXPECT_EQ(fixture.list(), (Ids{2, 1, 0}));
    ASSERT_TRUE(fixture.order.may_start(0)) << i;
    fixture.order.note_start(0);
  }
  EXPECT_EQ(runs.times_overtaken, kMaxPassed);
  EXPECT_EQ(waits.times_overtaken, kMaxPassed);
  EXPECT_EQ(is_short.times_overtaken, 0);
  fixture.list();
  EXPECT_FALSE(fixture.order.may_start(0));
  EXPECT_FALSE(fixture.order.may_start(1)) << "it would overtake the one that runs";
  fixture.running.clear();
  fixture.list();
  EXPECT_FALSE(fixture.order.may_start(0));
  EXPECT_TRUE(fixture.order.may_start(1));
}

}  // namespace
}  // namespace shoal
