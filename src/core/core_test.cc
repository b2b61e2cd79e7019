#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <future>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "core/arena.h"
#include "core/dtype.h"
#include "core/result.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/wakeup.h"

namespace shoal {
namespace {

TEST(DType, EveryFloat16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Float16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_float16(wide))));
    } else {
      EXPECT_EQ(to_float16(wide).bits, value.bits);
    }
  }
}

TEST(DType, Float16RoundsToNearestEven) {
  EXPECT_EQ(to_float16(1.0F + 0x1.0p-11F).bits, to_float16(1.0F).bits);              // tie, even below
  EXPECT_EQ(to_float16(1.0F + 0x1.8p-10F).bits, to_float16(1.0F + 0x1.0p-9F).bits);  // tie, even above
  EXPECT_EQ(to_float16(65519.0F).bits, 0x7bffU);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(to_float16(0x1.0p-25F).bits, 0U);  // half of the smallest subnormal
  EXPECT_EQ(to_float16(-0x1.8p-25F).bits, 0x8001U);
}

TEST(DType, BFloat16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_bfloat16(1.0F + 0x1.0p-8F).bits, to_bfloat16(1.0F).bits);
  EXPECT_EQ(to_float(to_bfloat16(1.0F + 0x1.8p-7F)), 1.0F + 0x1.0p-6F);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
}

TEST(DType, NamesOfBothSpellings) {
  EXPECT_EQ(dtype_from_name("torch.bfloat16"), DType::kBFloat16);
  EXPECT_EQ(dtype_from_safetensors("F8_E4M3"), DType::kFloat8E4M3);
  EXPECT_FALSE(dtype_from_name("bfloat17").has_value());
}

TEST(Tensor, ColumnSliceKeepsItsRowStride) {
  std::vector<float> storage(12);
  std::iota(storage.begin(), storage.end(), 0.0F);
  const Tensor whole(storage.data(), DType::kFloat32, {3, 4});
  const Tensor slice = whole.columns(1, 2);
  EXPECT_EQ(slice.row<float>(2)[1], 10.0F);
  EXPECT_FALSE(slice.contiguous());
  EXPECT_EQ(slice.rows(1, 2).with_row_shape({2, 1}).row<float>(1)[0], 9.0F);
  EXPECT_EQ(whole.describe(), "float32 [3, 4]");
}

TEST(Tensor, MisuseStops) {
  std::vector<float> storage(12);
  const Tensor whole(storage.data(), DType::kFloat32, {3, 4});
  EXPECT_DEATH((void)whole.rows(2, 2), "check failed");
  EXPECT_DEATH((void)whole.data<std::int32_t>(), "check failed");
  EXPECT_DEATH((void)whole.columns(1, 2).reshape({6}), "check failed");
}

TEST(Arena, ScopeGivesBackAndResetMergesChunks) {
  Arena arena(host_allocator());
  const Tensor first = arena.take(DType::kFloat32, {100, 1000});
  {
    const Arena::Scope scope(arena);
    (void)arena.take(DType::kFloat32, {2000, 1000});
  }
  const std::int64_t grown_bytes = arena.capacity_bytes();
  arena.reset();
  EXPECT_EQ(arena.capacity_bytes(), grown_bytes);
  const Tensor again = arena.take(DType::kFloat32, {100, 1000});
  (void)arena.take(DType::kFloat32, {2000, 1000});
  EXPECT_EQ(arena.capacity_bytes(), grown_bytes) << "a warm arena must not grow";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(again.raw()) % 64, 0U);
  EXPECT_NE(first.raw(), nullptr);
}

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(repeat));
      pool.parallel_for(repeat, [&](std::int64_t index) { seen[static_cast<std::size_t>(index)].fetch_add(1); });
      for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
    }
  }
}

// A worker stopped in a signal handler stands for one that the operating system does not run.
int stopped_pipe[2];
int go_on_pipe[2];

void stop_until_told(int /*signal*/) {
  char byte = 0;
  static_cast<void>(!::write(stopped_pipe[1], &byte, 1));
  static_cast<void>(!::read(go_on_pipe[0], &byte, 1));
}

TEST(ThreadPool, DoesNotWaitForAWorkerThatIsNotRunning) {
  ASSERT_EQ(::pipe(stopped_pipe), 0);
  ASSERT_EQ(::pipe(go_on_pipe), 0);
  std::signal(SIGUSR1, stop_until_told);
  std::optional<ThreadPool> pool(2);
  const pthread_t caller = ::pthread_self();
  std::atomic<pthread_t> worker{caller};
  while (worker.load() == caller) {
    pool->parallel_for(64, [&](std::int64_t /*index*/) {
      if (::pthread_self() != caller) worker.store(::pthread_self());
      std::this_thread::yield();
    });
  }
  ASSERT_EQ(::pthread_kill(worker.load(), SIGUSR1), 0);
  char byte = 0;
  ASSERT_EQ(::read(stopped_pipe[0], &byte, 1), 1);

  std::atomic<int> done{0};
  std::future<void> lists = std::async(std::launch::async, [&] {
    for (int list = 0; list < 100; ++list) pool->parallel_for(10, [&](std::int64_t /*index*/) { done.fetch_add(1); });
  });
  EXPECT_EQ(lists.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(::write(go_on_pipe[1], &byte, 1), 1);
  lists.wait();
  EXPECT_EQ(done.load(), 1000);
  pool->parallel_for(10, [&](std::int64_t /*index*/) { done.fetch_add(1); });
  EXPECT_EQ(done.load(), 1010);
  pool.reset();  // joins the worker, whose handler reads the pipe
  std::signal(SIGUSR1, SIG_DFL);
  for (const int fd : {stopped_pipe[0], stopped_pipe[1], go_on_pipe[0], go_on_pipe[1]}) ::close(fd);
}

TEST(Result, HoldsValueOrError) {
  const Result<int> good = 3;
  const Result<int> bad = Error{ErrorCode::kValidation, "no"};
  EXPECT_EQ(good.value(), 3);
  EXPECT_EQ(bad.error().message, "no");
  EXPECT_DEATH((void)bad.value(), "check failed");
}

TEST(Wakeup, RingsAreRememberedAsOneAndTakenOnce) {
  Wakeup wakeup;
  EXPECT_FALSE(wakeup.take());
  wakeup.notify();
  wakeup.notify();
  EXPECT_TRUE(wakeup.take());
  EXPECT_FALSE(wakeup.take());
  EXPECT_FALSE(wakeup.wait_for(std::chrono::milliseconds(0))) << "it was taken";
  wakeup.notify();
  wakeup.wait();
  EXPECT_FALSE(wakeup.take());
}

}  // namespace
}  // namespace shoal
