#include "lora/adapter_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "lora/place_in.h"
#include "lora/test_merge.h"

namespace shoal {
namespace {

constexpr MergeStrategy kStrategies[] = {MergeStrategy::kLinear, MergeStrategy::kTies, MergeStrategy::kDareLinear,
                                         MergeStrategy::kDareTies};

class AdapterMergeTest : public testing::Test {
 protected:
  AdapterMergeTest() {
    targets_.add({.path = "wide", .in_features = 13, .out_features = 8, .row_order = {}});
    targets_.add({.path = "tall", .in_features = 6, .out_features = 19, .row_order = {}});
    // As a fused query-key-value weight has it: our rows in another order than the file's.
    targets_.add({.path = "fused", .in_features = 7, .out_features = 12, .row_order = interleaved_qkv_rows(2, 2)});
    targets_.add({.path = "untouched", .in_features = 4, .out_features = 4, .row_order = {}});
  }

  TestAdapter& add(std::vector<std::int64_t> ranks, float scale, DType dtype = DType::kFloat32) {
    adapters_.push_back(std::make_unique<TestAdapter>(targets_, std::move(ranks), scale, dtype, next_seed_++));
    return *adapters_.back();
  }

  // Of all adapters that were added, named a, b, c, ...
  AdapterMerge merge_of(MergeStrategy strategy, std::vector<float> weights, float density = 1.0F) const {
    AdapterMerge merge{.ids = {}, .weights = std::move(weights), .strategy = strategy, .density = density};
    for (std::size_t i = 0; i < adapters_.size(); ++i) merge.ids.emplace_back(1, static_cast<char>('a' + i));
    return merge;
  }
  Result<AdapterWeights> run(const AdapterMerge& merge, const MergeOptions& options = {}) {
    std::vector<AdapterWeights> members;
    for (const auto& adapter : adapters_) members.push_back(adapter->weights());
    return merge_adapters(members, merge, targets_, place_in(memory_), options);
  }
  // The merged change of a target in double, row-major in the file's order of rows.
  Dense reference(const AdapterMerge& merge, std::int32_t target) const {
    std::vector<Dense> changes;
    std::vector<std::uint64_t> seeds;
    std::vector<float> weights;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      if (!adapters_[i]->has(target)) continue;
      changes.push_back(adapters_[i]->change(target));
      seeds.push_back(reference_seed(merge, targets_.at(target).path, i));
      weights.push_back(merge.weights[i]);
    }
    return merge_in_double(std::move(changes), weights, seeds, merge);
  }
  void expect_reference(const AdapterMerge& merge, const AdapterWeights& merged, double tolerance = 2e-5) {
    for (std::int32_t target = 0; target < targets_.size(); ++target) {
      const LoraPair& pair = merged.pairs()[static_cast<std::size_t>(target)];
      const bool expected =
          std::any_of(adapters_.begin(), adapters_.end(), [&](const auto& adapter) { return adapter->has(target); });
      ASSERT_EQ(pair.a.defined(), expected) << targets_.at(target).path;
      if (!expected) continue;
      EXPECT_LT(worst_difference(product_of(pair, targets_.at(target)), reference(merge, target)), tolerance)
          << strategy_name(merge.strategy) << " at " << targets_.at(target).path << ", density " << merge.density;
    }
  }

  LoraPair pair_of(std::size_t adapter, std::int32_t target) const {
    return adapters_[adapter]->weights().pairs()[static_cast<std::size_t>(target)];
  }

  LoraTargets targets_;
  std::vector<std::unique_ptr<TestAdapter>> adapters_;
  Buffer memory_;
  std::uint32_t next_seed_ = 1;
};

// Three adapters of ranks 1 to 5, each without some module, of three scales and dtypes.
TEST_F(AdapterMergeTest, EveryStrategyIsTheReferenceElementByElement) {
  add({3, 1, 5, 0}, 2.0F);
  add({1, 0, 2, 0}, 0.25F, DType::kBFloat16);
  add({5, 4, 0, 0}, 1.3F, DType::kFloat16);
  for (const MergeStrategy strategy : kStrategies) {
    for (const SignElection election : {SignElection::kTotal, SignElection::kFrequency}) {
      for (const float density : {0.1F, 0.5F, 0.77F, 1.0F}) {
        AdapterMerge merge = merge_of(strategy, {0.7F, 1.5F, -0.4F}, density);
        merge.election = election;
        const Result<AdapterWeights> merged = run(merge);
        ASSERT_TRUE(merged.ok()) << merged.error().message;
        expect_reference(merge, merged.value());
      }
    }
  }
}

TEST_F(AdapterMergeTest, ALinearMergeIsItsMembersOneAfterTheOther) {
  add({3, 1, 5, 0}, 2.0F);
  add({1, 4, 0, 0}, 0.25F);
  const AdapterMerge merge = merge_of(MergeStrategy::kLinear, {0.5F, -3.0F});
  const AdapterWeights merged = run(merge).value();
  EXPECT_EQ(merged.pairs()[0].a.dim(0), 4);
  EXPECT_EQ(merged.pairs()[1].a.dim(0), 5);
  EXPECT_EQ(merged.pairs()[2].a.dim(0), 5);
  EXPECT_EQ(merged.num_modules(), 3);
  expect_reference(merge, merged, 1e-6);
  EXPECT_EQ(run(merge_of(MergeStrategy::kDareLinear, {0.5F, -3.0F})).value().pairs()[0].a.dim(0), 4)
      << "a density of 1 drops nothing";
}

TEST_F(AdapterMergeTest, MembersOfOneFactorKeepTheirBytes) {
  add({3, 1, 5, 0}, 2.0F, DType::kBFloat16);
  add({2, 4, 0, 0}, 1.0F, DType::kBFloat16);
  const AdapterWeights merged = run(merge_of(MergeStrategy::kLinear, {0.5F, 1.0F})).value();
  const LoraPair& pair = merged.pairs()[0];
  EXPECT_EQ(pair.a.dtype(), DType::kBFloat16);
  EXPECT_EQ(pair.scale, 1.0F);
  const LoraPair& second = adapters_[1]->weights().pairs()[0];
  EXPECT_EQ(std::memcmp(pair.b.row<BFloat16>(3), second.b.raw(), static_cast<std::size_t>(second.b.num_bytes())), 0);
  // Others are widened before they are scaled, so nothing is rounded to 16 bits twice.
  const AdapterMerge uneven = merge_of(MergeStrategy::kLinear, {0.3F, 1.0F});
  const AdapterWeights widened = run(uneven).value();
  EXPECT_EQ(widened.pairs()[0].a.dtype(), DType::kFloat32);
  expect_reference(uneven, widened, 1e-6);
}

TEST_F(AdapterMergeTest, OneAdapterAtWeightOneIsThatAdapter) {
  TestAdapter& one = add({3, 1, 5, 0}, 2.0F, DType::kBFloat16);
  EXPECT_EQ(run(merge_of(MergeStrategy::kLinear, {1.0F})).value().identity(), one.weights().identity());
  const AdapterMerge ties = merge_of(MergeStrategy::kTies, {1.0F});
  expect_reference(ties, run(ties).value());
}

TEST_F(AdapterMergeTest, RanksAddUpToTheMostOrAreRefused) {
  add({5, 4, 0, 0}, 2.0F);
  add({5, 4, 0, 0}, 0.5F);
  const AdapterMerge linear = merge_of(MergeStrategy::kLinear, {1.0F, 2.0F});
  const AdapterWeights merged = run(linear, {.most_rank = 8}).value();
  EXPECT_EQ(merged.pairs()[0].a.dim(0), 8) << "ten ranks do not fit, but the weight has only eight rows";
  EXPECT_EQ(merged.pairs()[1].a.dim(0), 8) << "as they are";
  expect_reference(linear, merged);
  for (const MergeStrategy strategy : kStrategies) {
    const Result<AdapterWeights> refused = run(merge_of(strategy, {1.0F, 2.0F}, 0.5F), {.most_rank = 7});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(refused.error().message, "the ranks of the merged adapters add up to 10 at wide, expected at most 7");
  }
}

// Where the whole change does not fit, its projection on the image of the members' A stands for it.
TEST_F(AdapterMergeTest, WhatDoesNotFitIsProjected) {
  add({2, 1, 1, 0}, 2.0F);
  add({1, 2, 1, 0}, 0.5F);
  for (const MergeStrategy strategy : {MergeStrategy::kTies, MergeStrategy::kDareLinear, MergeStrategy::kDareTies}) {
    const AdapterMerge merge = merge_of(strategy, {1.0F, 0.5F}, 0.6F);
    const AdapterWeights merged = run(merge, {.most_rank = 4}).value();
    for (std::int32_t id = 0; id < 3; ++id) {
      const LoraTarget& target = targets_.at(id);
      const Dense whole = reference(merge, id);
      const Dense expected = project_in_double(whole, {pair_of(0, id), pair_of(1, id)}, target);
      EXPECT_LT(worst_difference(product_of(merged.pairs()[static_cast<std::size_t>(id)], target), expected), 2e-5);
      EXPECT_GT(worst_difference(expected, whole), 0.01) << "the projection is not the whole change here";
    }
  }
}

TEST_F(AdapterMergeTest, AProjectionOfWhatFitsLosesNothing) {
  add({2, 1, 1, 0}, 2.0F);
  const AdapterMerge merge = merge_of(MergeStrategy::kTies, {0.5F});
  expect_reference(merge, run(merge, {.most_rank = 5}).value());
  // The same adapter twice: half of the directions depend on the others.
  adapters_.push_back(
      std::make_unique<TestAdapter>(targets_, std::vector<std::int64_t>{2, 1, 1, 0}, 2.0F, DType::kFloat32, 1));
  const AdapterMerge twice = merge_of(MergeStrategy::kTies, {0.5F, 1.0F});
  const AdapterWeights merged = run(twice, {.most_rank = 5}).value();
  EXPECT_EQ(merged.pairs()[0].a.dim(0), 4);
  expect_reference(twice, merged);
}

TEST_F(AdapterMergeTest, OfEqualElementsTheFirstStay) {
  add({1, 0, 0, 0}, 1.0F).fill(0.5F);
  const AdapterMerge merge = merge_of(MergeStrategy::kTies, {1.0F}, 0.25F);
  const Dense change = product_of(run(merge).value().pairs()[0], targets_.at(0));
  for (std::size_t i = 0; i < change.size(); ++i) EXPECT_EQ(change[i], i < 26 ? 0.25 : 0.0) << i << " of 104";
}

// Signs that are elected differently: by sum the one large value wins, by number the two small ones.
TEST_F(AdapterMergeTest, SignsAreElectedBySumOrByNumber) {
  add({1, 0, 0, 0}, 1.0F).fill(2.0F);
  add({1, 0, 0, 0}, -1.0F).fill(1.0F);
  add({1, 0, 0, 0}, -0.5F).fill(1.0F);
  AdapterMerge merge = merge_of(MergeStrategy::kTies, {1.0F, 1.0F, 3.0F});
  EXPECT_EQ(product_of(run(merge).value().pairs()[0], targets_.at(0))[5], 4.0);
  merge.election = SignElection::kFrequency;
  EXPECT_EQ(product_of(run(merge).value().pairs()[0], targets_.at(0))[5], (-1.0 - 3.0 * 0.5) / 2.0);
}

// Kept elements are divided by the density, so that the change is kept on the average.
TEST_F(AdapterMergeTest, DareRescalesWhatItKeeps) {
  targets_.add({.path = "large", .in_features = 200, .out_features = 200, .row_order = {}});
  add({0, 0, 0, 0, 1}, 1.0F).fill(1.0F);
  const AdapterMerge merge = merge_of(MergeStrategy::kDareLinear, {3.0F}, 0.25F);
  const Dense change = product_of(run(merge).value().pairs()[4], targets_.at(4));
  const auto kept = std::count(change.begin(), change.end(), 12.0);
  EXPECT_EQ(std::count(change.begin(), change.end(), 0.0) + kept, 40'000);
  EXPECT_NEAR(static_cast<double>(kept), 10'000.0, 500.0) << "six deviations of 87";
}

TEST_F(AdapterMergeTest, MasksFollowFromTheMergeAlone) {
  TestAdapter& first = add({2, 2, 3, 0}, 1.0F);
  add({1, 1, 1, 0}, 1.0F);
  const AdapterMerge merge = merge_of(MergeStrategy::kDareTies, {1.0F, 0.5F}, 0.5F);
  const AdapterIdentity identity = run(merge).value().identity();
  EXPECT_EQ(run(merge).value().identity(), identity) << "the same again";
  const auto kept = [&](const AdapterMerge& other, std::size_t target) {
    std::vector<bool> mask;
    const AdapterWeights merged = run(other).value();
    for (const double value : product_of(merged.pairs()[target], targets_.at(static_cast<std::int32_t>(target)))) {
      mask.push_back(value != 0.0);
    }
    return mask;
  };
  const std::vector<bool> mask = kept(merge, 0);
  // Other ranks of the same change: what a group of ranks that share an adapter would see.
  std::unique_ptr<TestAdapter> idle = std::make_unique<TestAdapter>(first.with_idle_ranks());
  adapters_[0].swap(idle);
  EXPECT_EQ(kept(merge, 0), mask);
  adapters_[0].swap(idle);
  AdapterMerge other = merge;
  other.weights[1] = 0.25F;
  EXPECT_NE(kept(other, 0), mask);
  other = merge;
  other.ids[0] = "z";
  EXPECT_NE(kept(other, 0), mask);
  other = merge;
  other.strategy = MergeStrategy::kDareLinear;
  EXPECT_NE(run(other).value().identity(), identity);
}

TEST_F(AdapterMergeTest, RefusesWhatIsNotFiniteHasNoPlaceOrIsGivenUp) {
  add({2, 1, 1, 0}, 10.0F);
  add({1, 2, 1, 0}, 1.0F);
  for (const MergeStrategy strategy : kStrategies) {
    const AdapterMerge large = merge_of(strategy, {3e38F, 1.0F}, 0.5F);
    for (const std::int64_t most_rank : {4, 256}) {
      const Result<AdapterWeights> refused = run(large, {.most_rank = most_rank});
      ASSERT_FALSE(refused.ok()) << strategy_name(strategy);
      EXPECT_EQ(refused.error().message, "the merged values of wide are not finite");
      if (strategy == MergeStrategy::kLinear) continue;
      const Result<AdapterWeights> stopped =
          run(merge_of(strategy, {1.0F, 1.0F}, 0.5F), {.most_rank = most_rank, .stopped = [] { return true; }});
      EXPECT_EQ(stopped.error().message, "the merge was given up");
    }
  }
  const std::vector<AdapterWeights> members = {adapters_[0]->weights(), adapters_[1]->weights()};
  const Result<AdapterWeights> refused = merge_adapters(members, merge_of(MergeStrategy::kLinear, {1.0F, 1.0F}),
                                                        targets_, [](std::int64_t) -> std::byte* { return nullptr; });
  EXPECT_NE(refused.error().message.find("no place for"), std::string::npos);
}

}  // namespace
}  // namespace shoal
