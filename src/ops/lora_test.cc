#include "ops/lora.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "ops/op_test_util.h"
#include "ops/tolerance.h"

namespace shoal {
namespace {

constexpr std::array kFloatDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::array kRanks{1, 3, 8, 64, 256};

// Adapters of every rank and dtype over a fused q|k|v of three unequal parts, with a gap behind the first.
class Adapters {
 public:
  Adapters(std::int64_t num_inputs, RandomFill& random) {
    parts = {{.target_id = 0, .column_begin = 0, .column_count = 65},
             {.target_id = 2, .column_begin = 70, .column_count = 17},
             {.target_id = 1, .column_begin = 87, .column_count = 1}};
    for (const std::int64_t rank : kRanks) {
      const DType dtype = kFloatDTypes[memory_.size() / 6 % kFloatDTypes.size()];
      std::vector<LoraPair> pairs(3);
      for (const LoraPart& part : parts) {
        memory_.push_back(random.tensor(dtype, {rank, num_inputs}));
        const Tensor a = memory_.back();
        memory_.push_back(random.tensor(dtype, {rank, part.column_count}));
        pairs[static_cast<std::size_t>(part.target_id)] = {.a = a, .b = memory_.back(), .scale = kScale};
      }
      pairs_.push_back(std::move(pairs));
    }
    pairs_.back()[2] = {};  // the last adapter has nothing for one target
  }

  static constexpr float kScale = 0.5F;
  static constexpr std::int64_t kNumColumns = 90;

  std::span<const LoraPair> pairs(std::size_t adapter) const { return pairs_[adapter]; }

  std::vector<LoraPart> parts;

 private:
  std::vector<HostTensor> memory_;
  std::vector<std::vector<LoraPair>> pairs_;
};

// Which adapter each token uses, -1 for none, as the op wants it.
class GroupedTokens {
 public:
  GroupedTokens(const Adapters& adapters, const std::vector<int>& adapter_of_token) {
    for (int adapter = 0; adapter < std::ssize(kRanks); ++adapter) {
      const auto begin = std::ssize(token_rows_);
      for (std::size_t t = 0; t < adapter_of_token.size(); ++t) {
        if (adapter_of_token[t] == adapter) token_rows_.push_back(static_cast<std::int32_t>(t));
      }
      const auto count = std::ssize(token_rows_) - begin;
      if (count == 0) continue;
      groups_.push_back(
          {.pairs = adapters.pairs(static_cast<std::size_t>(adapter)), .token_begin = begin, .token_count = count});
    }
  }

  LoraBatch view() {
    return {.groups = groups_,
            .token_rows = {token_rows_.data(), DType::kInt32, {std::ssize(token_rows_)}},
            .host_token_rows = token_rows_,
            .max_rank = kRanks.back()};
  }

 private:
  std::vector<LoraGroup> groups_;
  std::vector<std::int32_t> token_rows_;
};

class Lora : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(Backends, Lora, ::testing::ValuesIn(all_isas()), isa_test_name);

// Against the reference, so of the kernel sets alone.
class LoraSweep : public Lora {};

INSTANTIATE_TEST_SUITE_P(Backends, LoraSweep, ::testing::ValuesIn(kernel_isas()), isa_test_name);

TEST_P(Lora, AddsTheDeltaAsWrittenOnPaper) {
  const HostTensor a = values_f32({2, 2}, {1, 1, 0, 2});         // [rank, in]
  const HostTensor b = values_f32({2, 3}, {1, 0, 2, -1, 1, 0});  // [rank, out]
  const std::array<LoraPair, 1> pairs{LoraPair{.a = a, .b = b, .scale = 2.0F}};
  const std::array<LoraGroup, 1> groups{LoraGroup{.pairs = pairs, .token_begin = 0, .token_count = 1}};
  std::array<std::int32_t, 1> rows{1};
  const LoraBatch batch{
      .groups = groups, .token_rows = {rows.data(), DType::kInt32, {1}}, .host_token_rows = rows, .max_rank = 2};
  const std::array<LoraPart, 1> parts{LoraPart{.target_id = 0, .column_begin = 1, .column_count = 3}};
  const HostTensor x = values_f32({2, 2}, {9, 9, 1, 2});
  const HostTensor out = values_f32({2, 4}, {1, 1, 1, 1, 1, 1, 1, 1});
  ops::lora_add(ctx(), x, batch, parts, out);
  // x A^T = (3, 4), scaled (6, 8); B adds (6 - 8, 8, 12) to the last three columns of row 1.
  expect_close(out, values_f32({2, 4}, {1, 1, 1, 1, 1, -1, 9, 13}), 0.0, 1.0, "delta");
}

TEST_P(LoraSweep, MatchesReferenceOnMixedRanksAndBaseRows) {
  for (const std::int64_t num_inputs : {1, 3, 16, 17, 64, 65, 192, 257, 1100}) {
    RandomFill random(static_cast<std::uint64_t>(num_inputs));
    const Adapters adapters(num_inputs, random);
    for (const std::int64_t tokens : {1, 2, 5, 16, 33}) {
      std::vector<int> adapter_of_token;
      for (std::int64_t t = 0; t < tokens; ++t) {
        adapter_of_token.push_back(static_cast<int>(random.integer(-1, std::ssize(kRanks))));
      }
      GroupedTokens grouped(adapters, adapter_of_token);
      const HostTensor x = random.tensor(DType::kFloat32, {tokens, num_inputs}, Padding::kRows);
      const HostTensor got = random.tensor(DType::kFloat32, {tokens, Adapters::kNumColumns}, Padding::kRows);
      const HostTensor want = got.clone();
      const HostTensor before = got.clone();
      ops::lora_add(ctx(), x, grouped.view(), adapters.parts, got);
      ops::lora_add(reference_ctx(), x, grouped.view(), adapters.parts, want);
      const std::string where = fmt::format("{} inputs, {} tokens", num_inputs, tokens);
      // A shrunk value is about sqrt(inputs) / 3 times the scale; up to 256 of them make a delta.
      const double magnitude = 1.0 + std::sqrt(static_cast<double>(num_inputs)) * kRanks.back() / 6.0;
      expect_close(got, want, tolerance(OpFamily::kLora), magnitude, where);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const bool base = adapter_of_token[static_cast<std::size_t>(t)] < 0;
        for (std::int64_t i = 0; i < Adapters::kNumColumns; ++i) {
          const bool outside = (i >= 65 && i < 70) || i >= 88;
          if (!base && !outside) continue;
          ASSERT_EQ(got.at(t, i), before.at(t, i)) << where << " at " << t << ", " << i;
        }
      }
    }
  }
}

TEST_P(LoraSweep, MatchesReferenceOnEachRankAndKindAlone) {
  for (const std::int64_t rank : kRanks) {
    for (const DType dtype : kFloatDTypes) {
      for (const std::int64_t columns : {1, 3, 16, 17, 64, 65, 192, 257, 1030}) {
        RandomFill random(static_cast<std::uint64_t>(rank * 1000 + columns));
        const HostTensor a = random.tensor(dtype, {rank, 131});
        const HostTensor b = random.tensor(dtype, {rank, columns});
        const std::array<LoraPair, 1> pairs{LoraPair{.a = a, .b = b, .scale = 0.25F}};
        const std::array<LoraGroup, 1> groups{LoraGroup{.pairs = pairs, .token_begin = 0, .token_count = 7}};
        std::array<std::int32_t, 7> rows{6, 0, 3, 2, 5, 4, 1};
        const LoraBatch batch{.groups = groups,
                              .token_rows = {rows.data(), DType::kInt32, {7}},
                              .host_token_rows = rows,
                              .max_rank = rank};
        const std::array<LoraPart, 1> parts{LoraPart{.target_id = 0, .column_begin = 0, .column_count = columns}};
        const HostTensor x = random.tensor(DType::kFloat32, {7, 131});
        const HostTensor got = random.tensor(DType::kFloat32, {7, columns});
        const HostTensor want = got.clone();
        ops::lora_add(ctx(), x, batch, parts, got);
        ops::lora_add(reference_ctx(), x, batch, parts, want);
        expect_close(got, want, tolerance(OpFamily::kLora, dtype), 1.0 + static_cast<double>(rank),
                     fmt::format("rank {}, {}, {} columns", rank, dtype_name(dtype), columns));
      }
    }
  }
}

TEST_P(Lora, TokenAloneEqualsTokenInBatch) {
  RandomFill random(5);
  for (const std::int64_t num_inputs : {17, 257, 1100}) {
    const Adapters adapters(num_inputs, random);
    std::vector<int> adapter_of_token;
    for (int t = 0; t < 33; ++t) adapter_of_token.push_back(t % 7 == 6 ? -1 : t * 3 % 5);
    GroupedTokens grouped(adapters, adapter_of_token);
    const HostTensor x = random.tensor(DType::kFloat32, {33, num_inputs});
    const HostTensor batch = random.tensor(DType::kFloat32, {33, Adapters::kNumColumns});
    const HostTensor before = batch.clone();
    ops::lora_add(ctx(), x, grouped.view(), adapters.parts, batch);
    for (std::int64_t t = 0; t < 33; ++t) {
      HostTensor alone(DType::kFloat32, {1, Adapters::kNumColumns});
      for (std::int64_t i = 0; i < Adapters::kNumColumns; ++i) alone.set(0, i, before.at(t, i));
      GroupedTokens single(adapters, {adapter_of_token[static_cast<std::size_t>(t)]});
      ops::lora_add(ctx(), x.view().rows(t, 1), single.view(), adapters.parts, alone);
      expect_same_bits(batch, t, alone, fmt::format("{} inputs", num_inputs));
    }
  }
}

TEST_P(LoraSweep, DoesNotDependOnThreads) {
  RandomFill random(6);
  const Adapters adapters(300, random);
  GroupedTokens grouped(adapters, {4, 3, 2, 1, 0, -1, 4, 4, 3});
  const HostTensor x = random.tensor(DType::kFloat32, {9, 300});
  const HostTensor many = random.tensor(DType::kFloat32, {9, Adapters::kNumColumns});
  const HostTensor one = many.clone();
  ops::lora_add(ctx(), x, grouped.view(), adapters.parts, many);
  TestBackend single(GetParam(), 1);
  ops::lora_add(single.ctx(), x, grouped.view(), adapters.parts, one);
  expect_same_bits(many, 0, one, "one thread and three");
}

TEST_P(Lora, LeavesABatchWithoutAdaptersAsItIs) {
  RandomFill random(7);
  const Adapters adapters(16, random);
  GroupedTokens grouped(adapters, {-1, -1});
  const HostTensor x = random.tensor(DType::kFloat32, {2, 16});
  const HostTensor out = random.tensor(DType::kFloat32, {2, Adapters::kNumColumns});
  const HostTensor before = out.clone();
  ops::lora_add(ctx(), x, grouped.view(), adapters.parts, out);
  expect_same_bits(before, 0, out, "base rows");
}

}  // namespace
}  // namespace shoal
