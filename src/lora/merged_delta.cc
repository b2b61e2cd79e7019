#include "lora/merged_delta.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "ops/random.h"

namespace shoal {
namespace {

constexpr std::int64_t kTile = 256;  // columns whose sums stay in the first cache
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr int kLowBits = 16;

std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(value) & kMagnitude; }

// values [rows, in] = rows [first_row, first_row + rows) of b x a. Sums in one order, whatever the rows.
void change_rows(const MergeMember& member, std::int64_t in_features, std::int64_t first_row, std::int64_t num_rows,
                 std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
  for (std::int64_t begin = 0; begin < in_features; begin += kTile) {
    const std::int64_t count = std::min(kTile, in_features - begin);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      float* const sums = values.data() + row * in_features + begin;
      const float* const b = member.b.data() + (first_row + row) * member.rank;
      const float* a = member.a.data() + begin;
      std::int64_t r = 0;
      for (; r + 4 <= member.rank; r += 4, a += 4 * in_features) {
        for (std::int64_t j = 0; j < count; ++j) {
          sums[j] += b[r] * a[j] + b[r + 1] * a[in_features + j] + b[r + 2] * a[2 * in_features + j] +
                     b[r + 3] * a[3 * in_features + j];
        }
      }
      for (; r < member.rank; ++r, a += in_features) {
        for (std::int64_t j = 0; j < count; ++j) sums[j] += b[r] * a[j];
      }
    }
  }
}

bool elects_sign(MergeStrategy strategy) {
  return strategy == MergeStrategy::kTies || strategy == MergeStrategy::kDareTies;
}

bool draws(MergeStrategy strategy) {
  return strategy == MergeStrategy::kDareLinear || strategy == MergeStrategy::kDareTies;
}

}  // namespace

MergedDelta::MergedDelta(std::vector<MergeMember> members, const AdapterMerge& merge, std::int64_t in_features,
                         std::int64_t out_features)
    : members_(std::move(members)),
      merge_(merge),
      in_features_(in_features),
      out_features_(out_features),
      changes_(members_.size(), std::vector<float>(static_cast<std::size_t>(kRows * in_features))),
      merged_(static_cast<std::size_t>(kRows * in_features)) {
  if (merge.strategy != MergeStrategy::kTies || merge.density >= 1.0F) return;
  for (const MergeMember& member : members_) cuts_.push_back(find_cut(member));
}

// The k-th largest magnitude without sorting: floats of one sign stand in the order of their bits, so the upper halves
// are counted first, then the lower halves of those that share the upper one.
MergedDelta::Cut MergedDelta::find_cut(const MergeMember& member) {
  const std::int64_t num_elements = in_features_ * out_features_;
  const auto wanted =
      static_cast<std::int64_t>(std::floor(static_cast<double>(merge_.density) * static_cast<double>(num_elements)));
  std::int64_t left = std::max<std::int64_t>(wanted, 1);
  std::vector<std::int64_t> counts(std::size_t{1} << kLowBits);
  const auto count_all = [&](const auto& index_of) {
    std::fill(counts.begin(), counts.end(), 0);
    for (std::int64_t row = 0; row < out_features_; row += kRows) {
      const std::int64_t num_rows = std::min(kRows, out_features_ - row);
      const std::span<float> values(changes_[0].data(), static_cast<std::size_t>(num_rows * in_features_));
      change_rows(member, in_features_, row, num_rows, values);
      for (const float value : values) {
        const std::int64_t index = index_of(magnitude_bits(value));
        if (index >= 0) ++counts[static_cast<std::size_t>(index)];
      }
    }
  };
  // The largest index with which those from it on are enough; `left` becomes how many of its own are taken.
  const auto last_taken = [&] {
    std::size_t index = counts.size() - 1;
    for (; counts[index] < left; --index) left -= counts[index];
    return static_cast<std::uint32_t>(index);
  };
  count_all([](std::uint32_t bits) { return static_cast<std::int64_t>(bits >> kLowBits); });
  const std::uint32_t upper = last_taken();
  count_all([upper](std::uint32_t bits) {
    return bits >> kLowBits == upper ? static_cast<std::int64_t>(bits & 0xffffU) : std::int64_t{-1};
  });
  const std::uint32_t lower = last_taken();
  return {.bits = (upper << kLowBits) | lower, .num_equal = left};
}

void MergedDelta::keep_largest(Cut& left, std::span<float> values) const {
  for (float& value : values) {
    const std::uint32_t bits = magnitude_bits(value);
    const bool stays = bits > left.bits || (bits == left.bits && left.num_equal-- > 0);
    if (!stays) value = 0.0F;
  }
}

// Four draws a block of the generator, counted from the weight's first element: neither ranks nor the order in which
// rows are looked at change them.
void MergedDelta::keep_drawn(const MergeMember& member, std::int64_t first_row, std::span<float> values) const {
  const double density = merge_.density;
  const auto limit = static_cast<std::uint64_t>(density * 0x1p32);
  const auto rescale = static_cast<float>(1.0 / density);
  std::uint64_t element = static_cast<std::uint64_t>(first_row * in_features_);
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < values.size(); ++i, ++element) {
    if (i == 0 || element % 4 == 0) {
      const std::uint64_t block = element / 4;
      words =
          philox4x32(member.seed, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0U, 0U});
    }
    values[i] = words[element % 4] < limit ? values[i] * rescale : 0.0F;
  }
}

void MergedDelta::add_up(std::size_t num_values) {
  std::fill(merged_.begin(), merged_.end(), 0.0F);
  for (std::size_t member = 0; member < members_.size(); ++member) {
    const float weight = members_[member].weight;
    const float* const change = changes_[member].data();
    for (std::size_t i = 0; i < num_values; ++i) merged_[i] += weight * change[i];
  }
}

void MergedDelta::add_elected(std::size_t num_values) {
  const bool by_number = merge_.election == SignElection::kFrequency;
  for (std::size_t i = 0; i < num_values; ++i) {
    float votes = 0.0F;
    for (const std::vector<float>& change : changes_) {
      const float value = change[i];
      votes += by_number ? static_cast<float>((value > 0.0F) - (value < 0.0F)) : value;
    }
    const bool positive = votes >= 0.0F;
    float sum = 0.0F;
    float agreeing = 0.0F;
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const float value = changes_[member][i];
      if (positive ? value > 0.0F : value < 0.0F) {
        sum += members_[member].weight * value;
        agreeing += 1.0F;
      }
    }
    merged_[i] = sum / std::max(agreeing, 1.0F);
  }
}

void MergedDelta::for_rows(const std::function<bool(std::int64_t, std::span<const float>)>& use) {
  std::vector<Cut> left = cuts_;
  for (std::int64_t row = 0; row < out_features_; row += kRows) {
    const std::int64_t num_rows = std::min(kRows, out_features_ - row);
    const auto num_values = static_cast<std::size_t>(num_rows * in_features_);
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const std::span<float> values(changes_[member].data(), num_values);
      change_rows(members_[member], in_features_, row, num_rows, values);
      if (!left.empty()) keep_largest(left[member], values);
      if (draws(merge_.strategy) && merge_.density < 1.0F) keep_drawn(members_[member], row, values);
    }
    if (elects_sign(merge_.strategy)) {
      add_elected(num_values);
    } else {
      add_up(num_values);
    }
    if (!use(row, std::span<const float>(merged_.data(), num_values))) return;
  }
}

}  // namespace shoal
