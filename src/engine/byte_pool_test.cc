#include "engine/byte_pool.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

constexpr std::int64_t kUnit = BytePool::kAlignment;

TEST(BytePool, JoinsWhatIsGivenBack) {
  BytePool pool(4 * kUnit);
  const auto a = pool.take(kUnit), b = pool.take(kUnit), c = pool.take(2 * kUnit);
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(pool.take(1).has_value());
  pool.give_back(*a, kUnit);
  pool.give_back(*c, 2 * kUnit);
  EXPECT_FALSE(pool.take(3 * kUnit).has_value()) << "two holes";
  pool.give_back(*b, kUnit);
  EXPECT_EQ(pool.take(4 * kUnit), 0);
}

// An adapter whose files are not there: its load begins with no bytes, and ends while others come and go.
TEST(BytePool, NothingStandsInNobodysWay) {
  BytePool pool(2 * kUnit);
  const auto nothing = pool.take(0);
  const auto all = pool.take(2 * kUnit);
  ASSERT_TRUE(nothing && all);
  EXPECT_TRUE(pool.take(0).has_value()) << "also when the pool is full";
  pool.give_back(*nothing, 0);
  pool.give_back(*all, 2 * kUnit);
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.take(2 * kUnit), 0);
}

}  // namespace
}  // namespace shoal
