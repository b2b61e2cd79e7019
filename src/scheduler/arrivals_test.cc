// A step waits, for a fiftieth of a step's time, for adapters that are about to be on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/test_patience.h"
#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using test::eventually;
using test::request_of;
using test::small_engine;
using test::with_adapter;

constexpr milliseconds kStepTime{100};  // so that a fiftieth is worth a wait

// The fake engine with long steps and, where the test says so, with "slow-b" about to arrive.
class LongSteps final : public Engine {
 public:
  enum class Arrival : std::uint8_t { kAtTheSecondLook, kNever };

  LongSteps(FakeEngine& inner, Arrival arrival) : inner_(inner), arrival_(arrival) {}

  const EngineInfo& info() const override { return inner_.info(); }
  void launch(const StepPlan& plan) override {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(kStepTime);
    inner_.launch(plan);
    longest_step_ = std::max(longest_step_.load(), std::chrono::steady_clock::now() - begin);
  }
  const StepResult& collect() override { return inner_.collect(); }
  AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) override {
    return inner_.want_adapter(key, version, place);
  }
  TierState adapter_state(const AdapterTicket& ticket) const override { return inner_.adapter_state(ticket); }
  Error adapter_error(const AdapterTicket& ticket) const override { return inner_.adapter_error(ticket); }
  std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) override { return inner_.pin_adapter(ticket); }
  void release_adapter(const AdapterTicket& ticket) override { inner_.release_adapter(ticket); }
  AdapterVersion adapter_version(const AdapterKey& key) const override { return inner_.adapter_version(key); }
  AdapterStats adapter_stats() const override { return inner_.adapter_stats(); }
  bool adapters_arriving() const override {
    const std::int64_t looks = ++num_looks_;
    if (arrival_ == Arrival::kNever) return true;
    if (looks == 2) inner_.complete_load("slow-b");
    return looks < 2;
  }

  std::int64_t num_looks() const { return num_looks_; }
  // More than kStepTime on a busy machine.
  std::chrono::steady_clock::duration longest_step() const { return longest_step_; }

 private:
  FakeEngine& inner_;
  const Arrival arrival_;
  mutable std::atomic<std::int64_t> num_looks_{0};
  std::atomic<std::chrono::steady_clock::duration> longest_step_{};
};

struct Arrivals {
  explicit Arrivals(LongSteps::Arrival arrival) : engine(inner, arrival) {}

  // One that ends after two steps, one whose adapter is not there, and one that goes on.
  void run() {
    inner.hold();  // until all three are there, however busy the machine
    TestClient going_on(scheduler, request_of(4, 6));
    TestClient ends(scheduler, with_adapter(request_of(4, 2), "a"));
    TestClient waits(scheduler, with_adapter(request_of(4, 2), "slow-b"));
    inner.resume();
    going_on.wait_for_end();
    ends.wait_for_end();
    late = !waits.poll();
    if (late) inner.complete_load("slow-b");
    EXPECT_TRUE(eventually([&] { return waits.poll(); }));
    EXPECT_TRUE(waits.finish.has_value());
  }

  Wakeup wakeup;
  FakeEngine inner{small_engine(), wakeup};
  LongSteps engine;
  Scheduler scheduler{engine, wakeup, nullptr, {}};
  bool late = false;
};

TEST(Arrivals, TheNextStepTakesAnAdapterThatIsAboutToBeThere) {
  Arrivals arrivals(LongSteps::Arrival::kAtTheSecondLook);
  arrivals.run();
  EXPECT_FALSE(arrivals.late);
}

TEST(Arrivals, AStepDoesNotWaitForLongerThanAFiftieth) {
  Arrivals arrivals(LongSteps::Arrival::kNever);
  arrivals.run();
  EXPECT_TRUE(arrivals.late);
  EXPECT_GT(arrivals.engine.num_looks(), 0);
  // Two requests end while one waits, and each look but the last of a wait takes a millisecond of a fiftieth.
  const std::int64_t milliseconds_of_a_wait = arrivals.engine.longest_step() / 50 / milliseconds(1);
  EXPECT_LE(arrivals.engine.num_looks(), 2 * (1 + milliseconds_of_a_wait));
}

}  // namespace
}  // namespace shoal
