#include "lora/merged_pair.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lora/merged_delta.h"
#include "lora/projection.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

std::int64_t aligned(std::int64_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

float factor_of(const PairMember& member) { return member.weight * member.pair.scale; }

// One dtype and one factor: the members' own bytes with that factor as the scale, and nothing is rounded.
bool share_factor(std::span<const PairMember> members) {
  return std::all_of(members.begin(), members.end(), [&](const PairMember& member) {
    return member.pair.a.dtype() == members[0].pair.a.dtype() && factor_of(member) == factor_of(members[0]);
  });
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// Where row `row` of PEFT's B stands in ours.
std::vector<std::int64_t> column_of_rows(const LoraTarget& target) {
  const std::vector<RowRange> rows = target.row_order.empty() ? identity_rows(target.out_features) : target.row_order;
  std::vector<std::int64_t> columns(static_cast<std::size_t>(target.out_features));
  std::int64_t column = 0;
  for (const RowRange& range : rows) {
    for (std::int64_t i = 0; i < range.count; ++i) columns[static_cast<std::size_t>(range.begin + i)] = column++;
  }
  return columns;
}

void copy_concatenated(std::span<const PairMember> members, LoraPair& pair) {
  auto* a = static_cast<std::byte*>(pair.a.raw());
  auto* b = static_cast<std::byte*>(pair.b.raw());
  for (const PairMember& member : members) {
    std::memcpy(a, member.pair.a.raw(), static_cast<std::size_t>(member.pair.a.num_bytes()));
    std::memcpy(b, member.pair.b.raw(), static_cast<std::size_t>(member.pair.b.num_bytes()));
    a += member.pair.a.num_bytes();
    b += member.pair.b.num_bytes();
  }
}

void scale_concatenated(std::span<const PairMember> members, LoraPair& pair) {
  float* a = pair.a.data<float>();
  float* b = pair.b.data<float>();
  for (const PairMember& member : members) {
    const std::vector<float> member_a = float_values(member.pair.a);
    a = std::copy(member_a.begin(), member_a.end(), a);
    const double factor = static_cast<double>(member.weight) * static_cast<double>(member.pair.scale);
    for (const float value : float_values(member.pair.b)) *b++ = static_cast<float>(factor * value);
  }
}

MergedDelta delta_of(std::span<const PairMember> members, const AdapterMerge& merge, const LoraTarget& target,
                     std::span<const std::int64_t> columns) {
  std::vector<MergeMember> parts;
  for (const PairMember& member : members) {
    const std::int64_t rank = member.pair.a.dim(0);
    MergeMember part{.rank = rank,
                     .a = float_values(member.pair.a),
                     .b = std::vector<float>(static_cast<std::size_t>(target.out_features * rank)),
                     .weight = member.weight,
                     .seed = member.seed};
    const std::vector<float> b = float_values(member.pair.b);
    for (std::int64_t row = 0; row < target.out_features; ++row) {
      const std::int64_t column = columns[static_cast<std::size_t>(row)];
      for (std::int64_t r = 0; r < rank; ++r) {
        part.b[static_cast<std::size_t>(row * rank + r)] =
            member.pair.scale * b[static_cast<std::size_t>(r * target.out_features + column)];
      }
    }
    parts.push_back(std::move(part));
  }
  return {std::move(parts), merge, target.in_features, target.out_features};
}

void set_unit(const Tensor& factor) {
  std::fill_n(factor.data<float>(), factor.num_elements(), 0.0F);
  for (std::int64_t i = 0; i < factor.dim(0); ++i) factor.row<float>(i)[i] = 1.0F;
}

// The unit matrix takes the place of A or of B, whichever is smaller.
void write_whole(MergedDelta& delta, std::span<const std::int64_t> columns, const std::function<bool()>& stopped,
                 LoraPair& pair, bool& is_stopped) {
  const std::int64_t in_features = pair.a.dim(1);
  const bool unit_a = pair.a.dim(0) == in_features;
  if (unit_a) {
    set_unit(pair.a);
  } else {
    std::fill_n(pair.b.data<float>(), pair.b.num_elements(), 0.0F);
  }
  delta.for_rows([&](std::int64_t first_row, std::span<const float> values) {
    const std::int64_t num_rows = std::ssize(values) / in_features;
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t row = first_row + i;
      const std::int64_t column = columns[static_cast<std::size_t>(row)];
      const float* const from = values.data() + i * in_features;
      if (unit_a) {
        for (std::int64_t j = 0; j < in_features; ++j) pair.b.row<float>(j)[column] = from[j];
      } else {
        std::copy_n(from, in_features, pair.a.row<float>(row));
        pair.b.row<float>(row)[column] = 1.0F;
      }
    }
    is_stopped = stopped();
    return !is_stopped;
  });
}

}  // namespace

std::int64_t PairPlan::a_bytes(const LoraTarget& target) const {
  return aligned(rank * target.in_features * dtype_bytes(dtype));
}

std::int64_t PairPlan::b_bytes(const LoraTarget& target) const {
  return aligned(rank * target.out_features * dtype_bytes(dtype));
}

Result<PairPlan> plan_pair(std::span<const PairMember> members, const AdapterMerge& merge, const LoraTarget& target,
                           std::int64_t most_rank) {
  std::int64_t rank_sum = 0;
  for (const PairMember& member : members) rank_sum += member.pair.a.dim(0);
  const std::int64_t full_rank = std::min(target.in_features, target.out_features);
  if (is_sum(merge) && rank_sum <= most_rank) {  // a sum of products is a product of longer factors
    PairPlan plan{.form = PairForm::kConcatenated, .rank = rank_sum};
    if (share_factor(members)) {
      plan.dtype = members[0].pair.a.dtype();
      plan.scale = factor_of(members[0]);
    }
    return plan;
  }
  if (full_rank <= most_rank) return PairPlan{.form = PairForm::kWhole, .rank = full_rank};
  if (rank_sum > most_rank) {
    return Error{ErrorCode::kAdapterInvalid,
                 fmt::format("the ranks of the merged adapters add up to {} at {}, expected at most {}", rank_sum,
                             target.path, most_rank)};
  }
  return PairPlan{.form = PairForm::kProjected, .rank = rank_sum};
}

bool fill_pair(const PairPlan& plan, std::span<const PairMember> members, const AdapterMerge& merge,
               const LoraTarget& target, const std::function<bool()>& stopped, LoraPair& pair, MergeShare& share) {
  pair.scale = plan.scale;
  if (plan.form == PairForm::kConcatenated) {
    // Floats of one factor keep it as their scale too: one product less is rounded.
    if (share_factor(members)) {
      copy_concatenated(members, pair);
    } else {
      scale_concatenated(members, pair);
    }
    return std::isfinite(pair.scale) && (pair.b.dtype() != DType::kFloat32 || all_finite(pair.b.span<float>()));
  }
  const std::vector<std::int64_t> columns = column_of_rows(target);
  MergedDelta delta = delta_of(members, merge, target, columns);
  bool is_stopped = false;
  if (plan.form == PairForm::kWhole) {
    write_whole(delta, columns, stopped, pair, is_stopped);
  } else {
    is_stopped = !write_projected(delta, columns, stopped, pair, share);
  }
  return !is_stopped && all_finite(pair.a.span<float>()) && all_finite(pair.b.span<float>());
}

}  // namespace shoal
