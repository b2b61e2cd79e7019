// LoRA deltas of mixed adapters: every rank and dtype over fused parts, with the tables that kernels read on the GPU.
#include "ops/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>

#include "ops/cuda/cuda_test_util.h"
#include "ops/matmul.h"

namespace shoal {
namespace {

constexpr std::array<std::int64_t, 5> kRanks{1, 3, 8, 64, 256};
constexpr float kScale = 0.5F;

// Columns of the parts of a fused q|k|v, with a gap of five behind the first.
struct Parts {
  explicit Parts(const std::array<std::int64_t, 3>& column_counts) {
    constexpr std::array<std::int32_t, 3> kTargets{0, 2, 1};
    for (std::size_t i = 0; i < column_counts.size(); ++i) {
      parts.push_back({.target_id = kTargets[i], .column_begin = columns, .column_count = column_counts[i]});
      columns += column_counts[i] + (i == 0 ? 5 : 0);
    }
  }
  bool holds(std::int64_t column) const { return column < parts[0].column_count || column >= parts[1].column_begin; }

  std::vector<LoraPart> parts;
  std::int64_t columns = 0;
};

// Adapters with their pairs in host memory, on the GPU, and in the table that kernels read.
class Adapters {
 public:
  struct Kind {
    std::int64_t rank;
    DType dtype;
  };

  Adapters(const Backend& backend, const Parts& parts, std::int64_t num_inputs, const std::vector<Kind>& kinds,
           RandomFill& random) {
    for (const Kind& kind : kinds) {
      max_rank_ = std::max(max_rank_, kind.rank);
      std::vector<LoraPair> host(parts.parts.size());
      std::vector<LoraPair> device(parts.parts.size());
      std::vector<LoraPairRef> refs(parts.parts.size());
      for (const LoraPart& part : parts.parts) {
        const auto target = static_cast<std::size_t>(part.target_id);
        // The third adapter has nothing for one target.
        if (host_.size() == 2 && target == 2) continue;
        const HostTensor& a = host_memory_.emplace_back(random.tensor(kind.dtype, {kind.rank, num_inputs}));
        const DeviceTensor& device_a = device_memory_.emplace_back(backend, a);
        const HostTensor& b = host_memory_.emplace_back(random.tensor(kind.dtype, {kind.rank, part.column_count}));
        const DeviceTensor& device_b = device_memory_.emplace_back(backend, b);
        host[target] = {.a = a, .b = b, .scale = kScale};
        device[target] = {.a = device_a, .b = device_b, .scale = kScale};
        refs[target] = {.a = device_a.view().raw(),
                        .b = device_b.view().raw(),
                        .scale = kScale,
                        .rank = static_cast<std::int32_t>(kind.rank),
                        .dtype = static_cast<std::int32_t>(kind.dtype)};
      }
      host_.push_back(std::move(host));
      device_.push_back(std::move(device));
      refs_.push_back(&device_memory_.emplace_back(backend, host_values(refs, DType::kUInt8)));
    }
  }

  std::span<const LoraPair> pairs(std::size_t adapter, Side side) const {
    return side == Side::kDevice ? device_[adapter] : host_[adapter];
  }
  const LoraPairRef* refs(std::size_t adapter) const {
    return static_cast<const LoraPairRef*>(refs_[adapter]->view().raw());
  }
  std::int64_t max_rank() const { return max_rank_; }

 private:
  std::deque<HostTensor> host_memory_;  // deques: their elements stay where they are
  std::deque<DeviceTensor> device_memory_;
  std::vector<std::vector<LoraPair>> host_;    // by adapter, by target
  std::vector<std::vector<LoraPair>> device_;  // the same on the GPU
  std::vector<const DeviceTensor*> refs_;      // u8: LoraPairRef [targets], by adapter
  std::int64_t max_rank_ = 0;
};

// Shuffled rows of a batch, given to the adapters in turn; those that are left are of the base model.
class GroupedTokens {
 public:
  GroupedTokens(const Backend& backend, const Adapters& adapters, const std::vector<std::int64_t>& token_counts,
                std::int64_t num_base_rows, RandomFill& random)
      : rows_(static_cast<std::size_t>(std::accumulate(token_counts.begin(), token_counts.end(), num_base_rows))) {
    std::iota(rows_.begin(), rows_.end(), 0);
    for (std::size_t i = rows_.size() - 1; i > 0; --i) {
      std::swap(rows_[i], rows_[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) + 1))]);
    }
    num_rows = std::ssize(rows_);
    base_rows.assign(rows_.end() - num_base_rows, rows_.end());
    rows_.resize(rows_.size() - static_cast<std::size_t>(num_base_rows));
    std::vector<LoraGroupRef> group_refs;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < token_counts.size(); ++i) {
      for (const Side side : {Side::kDevice, Side::kReference}) {
        groups_[static_cast<std::size_t>(side)].push_back({.pairs = adapters.pairs(i, side),
                                                           .pair_refs = adapters.refs(i),
                                                           .token_begin = begin,
                                                           .token_count = token_counts[i]});
      }
      group_refs.push_back({.pairs = adapters.refs(i),
                            .token_begin = static_cast<std::int32_t>(begin),
                            .token_count = static_cast<std::int32_t>(token_counts[i])});
      begin += token_counts[i];
    }
    tables_.emplace_back(backend, host_values(rows_, DType::kInt32));
    tables_.emplace_back(backend, host_values(group_refs, DType::kUInt8));
    max_rank_ = adapters.max_rank();
  }

  LoraBatch on(Side side) const {
    return {.groups = groups_[static_cast<std::size_t>(side)],
            .token_rows = tables_[0].on(side),
            .host_token_rows = rows_,
            .max_rank = max_rank_,
            .group_refs = tables_[1].on(side)};
  }

  std::int64_t num_rows = 0;
  std::vector<std::int32_t> base_rows;

 private:
  std::vector<std::int32_t> rows_;  // of adapters, grouped
  std::array<std::vector<LoraGroup>, 2> groups_;
  std::vector<Twin> tables_;  // token rows, group refs
  std::int64_t max_rank_ = 0;
};

struct Layout {
  DType dtype = DType::kFloat32;  // of x
  DType out_dtype = DType::kFloat32;
  std::int64_t num_inputs = 64;
  std::array<std::int64_t, 3> column_counts{};
  Guards guards = kContiguous;
};

class CudaLora : public CudaTest {
 protected:
  // Product and deltas beside each other: the bits of one after the other.
  void expect_linear_adds_both(const Layout& layout, const Parts& parts, const LoraBatch& batch, const Tensor& x,
                               RandomFill& random) {
    Matrix weight = backend().allocate_matrix(layout.dtype, parts.columns, layout.num_inputs);
    backend().fill_rows(weight, 0, random.tensor(layout.dtype, {parts.columns, layout.num_inputs}));
    const std::vector<LoraInput> inputs{{.begin = 0, .count = layout.num_inputs, .parts = parts.parts}};
    const DeviceTensor together(backend(), layout.out_dtype, {x.dim(0), parts.columns});
    const DeviceTensor in_turn(backend(), layout.out_dtype, {x.dim(0), parts.columns});
    ops::linear(ctx(), x, weight, Tensor(), MatmulOutput::kOverwrite, batch, inputs, together);
    ops::matmul(ctx(), x, weight, Tensor(), MatmulOutput::kOverwrite, in_turn);
    ops::lora_add(ctx(), x, batch, parts.parts, in_turn);
    expect_equal_bits(together.download(), in_turn.download(), "linear");
  }

  void compare(const Layout& layout, const std::vector<Adapters::Kind>& kinds,
               const std::vector<std::int64_t>& token_counts, std::int64_t num_base_rows) {
    RandomFill random(static_cast<std::uint64_t>(layout.num_inputs));
    const Parts parts(layout.column_counts);
    const Adapters adapters(backend(), parts, layout.num_inputs, kinds, random);
    const GroupedTokens tokens(backend(), adapters, token_counts, num_base_rows, random);
    const Twin x = random_twin(random, layout.dtype, {tokens.num_rows, layout.num_inputs}, layout.guards);
    const HostTensor before = random.tensor(layout.out_dtype, {tokens.num_rows, parts.columns});
    const Twin out = twin(before, layout.guards);
    const DeviceTensor again(backend(), before, layout.guards);
    ops::lora_add(ctx(), x.device, tokens.on(Side::kDevice), parts.parts, out.device);
    ops::lora_add(ctx(), x.device, tokens.on(Side::kDevice), parts.parts, again);
    ops::lora_add(reference_ctx(), x.reference, tokens.on(Side::kReference), parts.parts, out.reference);

    const std::string where =
        fmt::format("{} x, {} out, {} inputs, {} columns, {} guards, {} adapters, the first of rank {} in {}",
                    dtype_name(layout.dtype), dtype_name(layout.out_dtype), layout.num_inputs, parts.columns,
                    layout.guards.before, kinds.size(), kinds[0].rank, dtype_name(kinds[0].dtype));
    const HostTensor got = out.device.download();
    // A shrunk value is about sqrt(inputs) / 3 times the scale; up to max_rank of them make a delta.
    const double magnitude = 1.0 + std::sqrt(static_cast<double>(layout.num_inputs)) *
                                       static_cast<double>(adapters.max_rank()) * double{kScale} / 3.0;
    expect_within(got, out.reference, {.family = OpFamily::kLora, .magnitude = magnitude}, where);
    expect_equal_bits(again.download(), got, "again, " + where);
    expect_linear_adds_both(layout, parts, tokens.on(Side::kDevice), x.device, random);
    for (std::int64_t row = 0; row < tokens.num_rows; ++row) {
      const bool base = std::find(tokens.base_rows.begin(), tokens.base_rows.end(), row) != tokens.base_rows.end();
      for (std::int64_t i = 0; i < parts.columns; ++i) {
        if (!base && parts.holds(i)) continue;
        ASSERT_EQ(got.at(row, i), before.at(row, i)) << where << ": touched base value " << row << ", " << i;
      }
    }
  }
};

std::vector<Adapters::Kind> kinds_of(std::initializer_list<std::size_t> ranks, std::size_t first_dtype) {
  std::vector<Adapters::Kind> kinds;
  for (const std::size_t rank : ranks) {
    kinds.push_back({.rank = kRanks[rank], .dtype = kFloatDTypes[(first_dtype + kinds.size()) % kFloatDTypes.size()]});
  }
  return kinds;
}

TEST_F(CudaLora, MatchesReferenceOnMixedAdapters) {
  constexpr std::array kColumns{std::array<std::int64_t, 3>{65, 17, 7}, std::array<std::int64_t, 3>{64, 32, 1028}};
  std::size_t index = 0;
  for (const DType dtype : kFloatDTypes) {
    for (const std::int64_t num_inputs : {1, 33, 64, 257, 1032}) {
      for (const auto& column_counts : kColumns) {
        for (const Guards guards : {kContiguous, kAlignedGuards, kOddGuards}) {
          const Layout layout{.dtype = dtype,
                              .out_dtype = index % 2 == 0 ? dtype : DType::kFloat32,
                              .num_inputs = num_inputs,
                              .column_counts = column_counts,
                              .guards = guards};
          compare(layout, kinds_of({0, 1, 2, 3, 4}, index), {8, 1, 40, 9, 5}, 6);
          compare(layout, kinds_of({2, 2}, index), {1, 1}, 0);
          ++index;
        }
      }
    }
  }
}

// A decode step's groups and a prompt's in each dtype: little enough work for tools that watch every access.
TEST_F(CudaLora, SmallestOfEachKind) {
  for (const DType dtype : kFloatDTypes) {
    const Layout layout{.dtype = dtype, .out_dtype = dtype, .num_inputs = 64, .column_counts = {17, 8, 33}};
    compare(layout, kinds_of({0, 2}, 0), {2, 1}, 1);
    compare(layout, kinds_of({3}, 1), {17}, 1);
  }
}

TEST_F(CudaLora, MatchesReferenceOnEachRankAndGroupAlone) {
  std::size_t index = 0;
  for (const DType dtype : kFloatDTypes) {
    for (std::size_t rank = 0; rank < kRanks.size(); ++rank) {
      for (std::size_t adapter_dtype = 0; adapter_dtype < kFloatDTypes.size(); ++adapter_dtype) {
        for (const std::int64_t num_tokens : {1, 7, 8, 9, 16, 40}) {
          const Layout layout{.dtype = dtype,
                              .out_dtype = index % 3 == 0 ? DType::kFloat32 : dtype,
                              .num_inputs = index % 2 == 0 ? 33 : 128,
                              .column_counts = {7, 24, 130}};
          compare(layout, kinds_of({rank}, adapter_dtype), {num_tokens}, static_cast<std::int64_t>(index % 3));
          ++index;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal
