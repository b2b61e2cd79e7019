#include "engine/adapter_tiers.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace shoal {
namespace {

constexpr std::int64_t kUnit = BytePool::kAlignment;

QueuePlace place(std::int64_t arrival) { return {.priority = 0, .arrival = arrival}; }
AdapterVersion version(std::int64_t units, std::uint64_t signature = 1) {
  return {.signature = signature, .file_bytes = units * kUnit};
}

// Runs all moves that there is room for, at once.
void settle(AdapterTiers& tiers) {
  for (;;) {
    const auto load = tiers.next_load();
    if (load) tiers.load_done(load->id, load->num_bytes, load->num_bytes);
    const auto upload = tiers.next_upload();
    if (upload) tiers.upload_done(upload->id);
    if (!load && !upload) return;
  }
}

TEST(AdapterTiers, PinnedAdaptersNeverExceedTheDevice) {
  AdapterTiers tiers({.device_bytes = 3 * kUnit, .host_bytes = 9 * kUnit});
  const auto first = tiers.want({.id = "first"}, version(2), place(1));
  const auto second = tiers.want({.id = "second"}, version(2), place(2));
  const auto small = tiers.want({.id = "small"}, version(1), place(3));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(first, place(1)).has_value());
  settle(tiers);
  EXPECT_EQ(tiers.state(second), TierState::kNoRoom);
  EXPECT_EQ(tiers.state(small), TierState::kNoRoom) << "it would take the room that an earlier one waits for";
  EXPECT_FALSE(tiers.pin(second, place(2)).has_value());
  tiers.release(first, place(1));
  settle(tiers);
  EXPECT_TRUE(tiers.pin(second, place(2)).has_value());
  EXPECT_TRUE(tiers.pin(small, place(3)).has_value());
  EXPECT_EQ(tiers.stats().pinned_bytes, 3 * kUnit);
}

TEST(AdapterTiers, NobodyWaitsBehindOneThatWasCancelled) {
  AdapterTiers tiers({.device_bytes = 3 * kUnit, .host_bytes = 9 * kUnit});
  const auto pinned = tiers.want({.id = "pinned"}, version(2), place(1));
  const auto large = tiers.want({.id = "large"}, version(3), place(3));
  const auto small = tiers.want({.id = "small"}, version(1), place(4));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(pinned, place(1)).has_value());
  settle(tiers);
  EXPECT_EQ(tiers.state(small), TierState::kNoRoom);
  const auto earlier = tiers.want({.id = "earlier"}, version(1), place(2));
  EXPECT_EQ(tiers.state(earlier), TierState::kMoving) << "it was not tried yet";
  tiers.release(large, place(3));
  EXPECT_EQ(tiers.state(small), TierState::kMoving) << "nor was this one without the large one before it";
  settle(tiers);
  EXPECT_EQ(tiers.state(earlier), TierState::kOnDevice);
  EXPECT_EQ(tiers.state(small), TierState::kNoRoom) << "tried, and an earlier one has the place";
}

TEST(AdapterTiers, ReloadsFromHostMemory) {
  AdapterTiers tiers({.device_bytes = 2 * kUnit, .host_bytes = 9 * kUnit});
  for (std::int64_t i = 0; i < 6; ++i) {
    const auto id = tiers.want({.id = i % 2 == 0 ? "a" : "b"}, version(2), place(i));
    settle(tiers);
    ASSERT_TRUE(tiers.pin(id, place(i)).has_value());
    tiers.release(id, place(i));
  }
  EXPECT_EQ(tiers.stats().loads, 2);
  EXPECT_EQ(tiers.stats().uploads, 6);
  EXPECT_EQ(tiers.stats().host_hits, 4);
  EXPECT_EQ(tiers.stats().device_evictions, 5);
}

TEST(AdapterTiers, WhatNeverFitsFailsWithTheNumbersAndGivesItsBytesBack) {
  AdapterTiers tiers({.device_bytes = 2 * kUnit, .host_bytes = 4 * kUnit});
  const auto too_large = tiers.want({.id = "large"}, version(3), place(1));
  const auto larger = tiers.want({.id = "larger"}, version(5), place(2));
  settle(tiers);
  ASSERT_EQ(tiers.state(too_large), TierState::kFailed);
  EXPECT_EQ(tiers.error(too_large).message,
            "adapter large needs 768 bytes, the whole device memory for adapters is 512; raise "
            "--adapter-memory-fraction");
  EXPECT_EQ(tiers.error(larger).message,
            "adapter larger needs 1280 bytes, the whole host memory for adapters is 1024; raise --adapter-host-memory");
  EXPECT_EQ(tiers.stats().host_bytes, 0);
}

TEST(AdapterTiers, AFailureIsToldToItsWaitersAndTriedAgain) {
  AdapterTiers tiers({.device_bytes = 2 * kUnit, .host_bytes = 4 * kUnit});
  const auto broken = tiers.want({.id = "a"}, version(1), place(1));
  tiers.load_failed(tiers.next_load()->id, {ErrorCode::kAdapterInvalid, "broken"});
  const auto again = tiers.want({.id = "a"}, version(1), place(2));
  EXPECT_NE(again, broken);
  settle(tiers);
  EXPECT_EQ(tiers.state(broken), TierState::kFailed);
  EXPECT_EQ(tiers.state(again), TierState::kOnDevice);
  tiers.release(broken, place(1));
  EXPECT_EQ(tiers.want({.id = "a"}, version(1), place(3)), again);
}

TEST(AdapterTiers, AReplacedAdapterIsAnotherAndOldRequestsKeepTheirs) {
  AdapterTiers tiers({.device_bytes = 4 * kUnit, .host_bytes = 8 * kUnit});
  const auto before = tiers.want({.id = "a"}, version(1, 7), place(1));
  settle(tiers);
  const auto old_slot = tiers.pin(before, place(1));
  const auto after = tiers.want({.id = "a"}, version(1, 8), place(2));
  settle(tiers);
  const auto new_slot = tiers.pin(after, place(2));
  ASSERT_TRUE(old_slot && new_slot);
  EXPECT_NE(*old_slot, *new_slot);
  EXPECT_EQ(tiers.state(before), TierState::kInUse);
}

TEST(AdapterTiers, AFileThatGrewIsTriedAgainWithItsBytes) {
  AdapterTiers tiers({.device_bytes = 4 * kUnit, .host_bytes = 4 * kUnit});
  const auto id = tiers.want({.id = "a"}, version(0), place(1));
  tiers.load_needs(tiers.next_load()->id, 3 * kUnit);
  const auto load = tiers.next_load();
  ASSERT_TRUE(load.has_value());
  EXPECT_EQ(load->num_bytes, 3 * kUnit);
  tiers.load_done(id, 2 * kUnit, 2 * kUnit);
  EXPECT_EQ(tiers.stats().host_bytes, 2 * kUnit) << "what it did not need went back";
}

TEST(AdapterTiers, WhatIsKeptIsNoRoomForOthers) {
  AdapterTiers tiers({.device_bytes = 4 * kUnit, .host_bytes = 9 * kUnit, .max_device_adapters = 2});
  const auto kept = tiers.want({.id = "kept"}, version(2), place(-1));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(kept, place(-1)).has_value());
  tiers.keep(kept);
  const auto fits = tiers.want({.id = "fits"}, version(2), place(1));
  const auto large = tiers.want({.id = "large"}, version(3), place(2));
  settle(tiers);
  EXPECT_EQ(tiers.state(fits), TierState::kOnDevice);
  ASSERT_EQ(tiers.state(large), TierState::kFailed) << "it would wait for ever";
  EXPECT_EQ(tiers.error(large).message,
            "adapter large needs 768 bytes, the whole device memory for adapters beside 1 preloaded ones is 512; raise "
            "--adapter-memory-fraction");
  ASSERT_TRUE(tiers.pin(fits, place(1)).has_value());
  tiers.keep(fits);
  const auto third = tiers.want({.id = "third"}, version(0), place(3));
  settle(tiers);
  ASSERT_EQ(tiers.state(third), TierState::kFailed);
  EXPECT_NE(tiers.error(third).message.find("--max-active-adapters"), std::string::npos);
}

TEST(AdapterTiers, AFailedUploadGivesItsRoomBack) {
  AdapterTiers tiers({.device_bytes = kUnit, .host_bytes = 4 * kUnit, .max_device_adapters = 1});
  const auto broken = tiers.want({.id = "a"}, version(1), place(1));
  tiers.load_done(tiers.next_load()->id, kUnit, kUnit);
  tiers.upload_failed(tiers.next_upload()->id, {ErrorCode::kAdapterInvalid, "the device is gone"});
  EXPECT_EQ(tiers.state(broken), TierState::kFailed);
  EXPECT_EQ(tiers.stats().device_bytes, 0);
  EXPECT_EQ(tiers.stats().host_bytes, 0);
  tiers.release(broken, place(1));
  const auto again = tiers.want({.id = "b"}, version(1), place(2));
  settle(tiers);
  EXPECT_TRUE(tiers.pin(again, place(2)).has_value());
}

TEST(AdapterTiers, WhatIsForgottenLeavesWithItsLastUser) {
  AdapterTiers tiers({.device_bytes = 9 * kUnit, .host_bytes = 9 * kUnit});
  const auto id = tiers.want({.id = "a"}, version(2), place(1));
  tiers.want({.id = "b"}, version(1), place(2));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(id, place(1)).has_value());
  tiers.forget({.id = "a"});
  EXPECT_EQ(tiers.state(id), TierState::kInUse);
  EXPECT_EQ(tiers.stats().device_bytes, 3 * kUnit);
  EXPECT_TRUE(tiers.take_evicted().empty());
  tiers.release(id, place(1));
  EXPECT_EQ(tiers.take_evicted().size(), 2U) << "from host and device";
  EXPECT_EQ(tiers.stats().device_bytes, kUnit) << "the other one's";
  EXPECT_EQ(tiers.stats().host_bytes, kUnit);
}

TEST(AdapterTiers, WhatIsForgottenAndUnusedLeavesAtOnceInEachOfItsVersions) {
  AdapterTiers tiers({.device_bytes = 9 * kUnit, .host_bytes = 9 * kUnit});
  for (const std::uint64_t signature : {1U, 2U}) {
    const auto id = tiers.want({.id = "a"}, version(2, signature), place(1));
    settle(tiers);
    tiers.release(id, place(1));
  }
  EXPECT_EQ(tiers.stats().device_adapters, 2);
  tiers.forget({.source = "hub", .id = "a"});
  EXPECT_EQ(tiers.stats().device_adapters, 2) << "another source's";
  tiers.forget({.id = "a"});
  EXPECT_EQ(tiers.stats().device_adapters, 0);
  EXPECT_EQ(tiers.stats().host_bytes, 0);
}

TEST(AdapterTiers, WhatIsForgottenOnItsWayLeavesWhenItArrives) {
  AdapterTiers tiers({.device_bytes = 9 * kUnit, .host_bytes = 9 * kUnit});
  const auto id = tiers.want({.id = "a"}, version(2), place(1));
  const auto load = tiers.next_load();
  tiers.release(id, place(1));
  tiers.forget({.id = "a"});
  tiers.load_done(load->id, load->num_bytes, load->num_bytes);
  EXPECT_EQ(tiers.stats().host_bytes, 0);
  const auto again = tiers.want({.id = "a"}, version(2), place(2));
  const auto reload = tiers.next_load();
  tiers.load_done(reload->id, reload->num_bytes, reload->num_bytes);
  const auto upload = tiers.next_upload();
  tiers.release(again, place(2));
  tiers.forget({.id = "a"});
  EXPECT_EQ(tiers.stats().host_bytes, 2 * kUnit) << "the upload reads it";
  tiers.upload_done(upload->id);
  EXPECT_EQ(tiers.stats().host_bytes, 0);
  EXPECT_EQ(tiers.stats().device_bytes, 0);
}

TEST(AdapterTiers, WhoWantsWhatIsForgottenKeepsIt) {
  AdapterTiers tiers({.device_bytes = 9 * kUnit, .host_bytes = 9 * kUnit});
  const auto id = tiers.want({.id = "a"}, version(2), place(1));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(id, place(1)).has_value());
  tiers.forget({.id = "a"});
  EXPECT_EQ(tiers.want({.id = "a"}, version(2), place(2)), id);
  tiers.release(id, place(1));
  tiers.release(id, place(2));
  EXPECT_EQ(tiers.stats().device_adapters, 1);
}

TEST(AdapterTiers, TellsWhoArrivesBehindOneThatFoundNoRoom) {
  AdapterTiers tiers({.device_bytes = 3 * kUnit, .host_bytes = 9 * kUnit});
  const auto pinned = tiers.want({.id = "pinned"}, version(3), place(1));
  settle(tiers);
  ASSERT_TRUE(tiers.pin(pinned, place(1)).has_value());
  tiers.want({.id = "refused"}, version(1), place(2));
  settle(tiers);
  const auto behind = tiers.want({.id = "behind"}, version(1), place(3));
  EXPECT_EQ(tiers.state(behind), TierState::kMoving);
  const std::uint64_t before = tiers.num_news();
  const auto load = tiers.next_load();
  tiers.load_done(load->id, load->num_bytes, load->num_bytes);
  EXPECT_EQ(tiers.state(behind), TierState::kNoRoom);
  EXPECT_GT(tiers.num_news(), before);
}

// Drives the tiers with random requests and checks them against lists that are walked from end to end.
class DrawnTrace {
 public:
  explicit DrawnTrace(std::uint64_t seed) : random_(seed), tiers_(kOptions) {}

  void run() {
    for (int step = 0; step < 400; ++step) act();
    for (int step = 0; step < 2000 && !requests_.empty(); ++step) act_without_arrivals();
    EXPECT_TRUE(requests_.empty()) << "somebody waits for ever";
    EXPECT_EQ(tiers_.stats().pinned_bytes, 0);
    for (std::int64_t adapter = 0; adapter < kNumAdapters; ++adapter) tiers_.forget({.id = std::to_string(adapter)});
    for (int step = 0; step < 100; ++step) move();
    EXPECT_EQ(tiers_.stats().device_bytes, 0) << "forgotten, and nobody wants it";
    EXPECT_EQ(tiers_.stats().host_bytes, 0);
  }

 private:
  struct Request {
    AdapterTiers::Id id = -1;
    QueuePlace place;
    std::int32_t slot = -1;
  };
  struct Copy {
    AdapterTiers::Move move;
    bool ready = false;
  };
  static constexpr std::int64_t kNumAdapters = 12;
  static constexpr AdapterTierOptions kOptions{
      .device_bytes = 10 * kUnit, .host_bytes = 24 * kUnit, .max_device_adapters = 4};

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

  void act() {
    if (below(3) == 0) {
      const std::int64_t adapter = below(kNumAdapters) * below(kNumAdapters) / (kNumAdapters - 1);
      const QueuePlace at{.priority = static_cast<std::int32_t>(below(2)), .arrival = next_arrival_++};
      const auto id = tiers_.want({.id = std::to_string(adapter)}, version(1 + adapter % 6), at);
      requests_.push_back({.id = id, .place = at});
    }
    if (below(10) == 0) tiers_.forget({.id = std::to_string(below(kNumAdapters))});
    act_without_arrivals();
  }

  void act_without_arrivals() {
    for (Request& request : requests_) {
      if (request.slot < 0) request.slot = tiers_.pin(request.id, request.place).value_or(-1);
    }
    if (!requests_.empty() && below(3) == 0) {  // ends, is cancelled, or reads its failure
      const auto which = requests_.begin() + below(std::ssize(requests_));
      tiers_.release(which->id, which->place);
      requests_.erase(which);
    }
    move();
    check();
  }

  void move() {
    if (below(2) == 0) begin(host_, tiers_.next_load());
    if (below(2) == 0) begin(device_, tiers_.next_upload());
    for (auto* tier : {&host_, &device_}) {
      for (auto& [id, copy] : std::map<AdapterTiers::Id, Copy>(*tier)) {
        if (copy.ready || below(2) == 0) continue;
        if (tier == &device_) {
          (*tier)[id].ready = true;
          tiers_.upload_done(id);
        } else if (below(8) == 0) {
          tier->erase(id);
          tiers_.load_failed(id, {ErrorCode::kAdapterInvalid, "drawn"});
        } else {
          (*tier)[id].ready = true;
          tiers_.load_done(id, copy.move.num_bytes, copy.move.num_bytes);
        }
      }
    }
  }

  void begin(std::map<AdapterTiers::Id, Copy>& tier, const std::optional<AdapterTiers::Move>& move) {
    for (const AdapterTiers::Evicted& evicted : tiers_.take_evicted()) {
      auto& left = evicted.slot < 0 ? host_ : device_;
      ASSERT_TRUE(left.contains(evicted.id) && left[evicted.id].ready) << "only what is ready may leave";
      left.erase(evicted.id);
      for (const Request& request : requests_) {
        EXPECT_FALSE(evicted.slot >= 0 && request.slot == evicted.slot) << "a pinned adapter left";
      }
    }
    if (move) {
      EXPECT_TRUE(tier.emplace(move->id, Copy{.move = *move}).second);
    }
  }

  void check() {
    check_pool(host_, kOptions.host_bytes);
    check_pool(device_, kOptions.device_bytes);
    EXPECT_LE(std::ssize(device_), kOptions.max_device_adapters);
    std::int64_t pinned_bytes = 0;
    for (const auto& [id, copy] : device_) {
      bool pinned = false;
      for (const Request& request : requests_) {
        if (request.id != id || request.slot < 0) continue;
        pinned = true;
        EXPECT_EQ(request.slot, copy.move.slot);
      }
      pinned_bytes += pinned ? copy.move.num_bytes : 0;
    }
    EXPECT_EQ(pinned_bytes, tiers_.stats().pinned_bytes);
  }

  static void check_pool(const std::map<AdapterTiers::Id, Copy>& tier, std::int64_t budget_bytes) {
    std::vector<bool> taken(static_cast<std::size_t>(budget_bytes / kUnit), false);
    for (const auto& [id, copy] : tier) {
      for (std::int64_t at = copy.move.offset; at < copy.move.offset + copy.move.num_bytes; at += kUnit) {
        ASSERT_LT(at, budget_bytes);
        EXPECT_FALSE(taken[static_cast<std::size_t>(at / kUnit)]) << "two adapters in one place";
        taken[static_cast<std::size_t>(at / kUnit)] = true;
      }
    }
  }

  std::mt19937_64 random_;
  AdapterTiers tiers_;
  std::vector<Request> requests_;
  std::map<AdapterTiers::Id, Copy> host_, device_;
  std::int64_t next_arrival_ = 0;
};

TEST(AdapterTiers, DrawnTracesKeepBudgetsAndPins) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    DrawnTrace(seed).run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shoal
