#include "core/adapter_key.h"

#include <gtest/gtest.h>

#include <set>

namespace shoal {
namespace {

AdapterKey merge_of(AdapterMerge merge) { return {.source = "local", .id = "x", .merge = std::move(merge)}; }

TEST(AdapterKey, EachMergeHasANameOfItsOwn) {
  const AdapterMerge base{.ids = {"a", "b"}, .weights = {1.0F, 0.5F}, .density = 0.5F};
  std::vector<AdapterKey> keys = {{.id = "a"}, {.source = "hub", .id = "a"}, merge_of(base)};
  const auto add = [&](auto change) {
    AdapterMerge changed = base;
    change(changed);
    keys.push_back(merge_of(changed));
  };
  add([](AdapterMerge& m) { m.ids = {"b", "a"}; });
  add([](AdapterMerge& m) {
    m.ids = {"a,b"};
    m.weights = {1.0F};
  });
  add([](AdapterMerge& m) {
    m.ids = {"a 0x1p-1 1:b"};
    m.weights = {1.0F};
  });
  add([](AdapterMerge& m) { m.weights[1] = 0.50000006F; });
  add([](AdapterMerge& m) { m.weights[0] = -1.0F; });
  add([](AdapterMerge& m) { m.strategy = MergeStrategy::kTies; });
  add([](AdapterMerge& m) { m.strategy = MergeStrategy::kDareLinear; });
  add([](AdapterMerge& m) { m.strategy = MergeStrategy::kDareTies; });
  add([](AdapterMerge& m) { m.density = 0.25F; });
  add([](AdapterMerge& m) { m.election = SignElection::kFrequency; });
  std::set<std::string> names;
  for (const AdapterKey& key : keys) names.insert(name_of(key));
  EXPECT_EQ(names.size(), keys.size());
  EXPECT_EQ(name_of(keys[2]), name_of(merge_of(base)));
}

TEST(AdapterKey, AMemberIsFoundWhereTheMergeIs) {
  const AdapterKey key{.source = "s3", .id = "a,b", .merge = AdapterMerge{.ids = {"a", "b"}, .weights = {1, 1}}};
  EXPECT_EQ(member_key(key, 1), (AdapterKey{.source = "s3", .id = "b"}));
}

}  // namespace
}  // namespace shoal
