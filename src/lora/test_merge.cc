#include "lora/test_merge.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "lora/adapter_digest.h"
#include "ops/random.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

void put(const Tensor& tensor, std::int64_t index, float value) {
  switch (tensor.dtype()) {
    case DType::kBFloat16:
      tensor.data<BFloat16>()[index] = to_bfloat16(value);
      return;
    case DType::kFloat16:
      tensor.data<Float16>()[index] = to_float16(value);
      return;
    default:
      tensor.data<float>()[index] = value;
  }
}

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void keep_largest(Dense& change, float density) {
  const auto wanted = static_cast<std::size_t>(static_cast<double>(density) * static_cast<double>(change.size()));
  std::vector<std::size_t> order(change.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return std::abs(change[x]) > std::abs(change[y]); });
  for (std::size_t i = std::max<std::size_t>(wanted, 1); i < order.size(); ++i) change[order[i]] = 0.0;
}

void keep_drawn(Dense& change, std::uint64_t seed, float density) {
  for (std::size_t i = 0; i < change.size(); ++i) {
    const std::uint32_t word = philox4x32(seed, {static_cast<std::uint32_t>(i / 4), 0, 0, 0})[i % 4];
    const bool stays = static_cast<double>(word) < static_cast<double>(density) * 0x1p32;
    change[i] = stays ? change[i] / static_cast<double>(density) : 0.0;
  }
}

double elect(const std::vector<Dense>& changes, const std::vector<float>& weights, std::size_t i,
             SignElection election) {
  double votes = 0.0;
  for (const Dense& change : changes) {
    const double sign = change[i] > 0.0 ? 1.0 : (change[i] < 0.0 ? -1.0 : 0.0);
    votes += election == SignElection::kTotal ? change[i] : sign;
  }
  double sum = 0.0;
  int agreeing = 0;
  for (std::size_t member = 0; member < changes.size(); ++member) {
    const double value = changes[member][i];
    if (value == 0.0 || (value > 0.0) != (votes >= 0.0)) continue;
    sum += static_cast<double>(weights[member]) * value;
    ++agreeing;
  }
  return agreeing == 0 ? 0.0 : sum / agreeing;
}

}  // namespace

TestAdapter::TestAdapter(const LoraTargets& targets, std::vector<std::int64_t> ranks, float scale, DType dtype,
                         std::uint32_t seed)
    : targets_(targets),
      ranks_(std::move(ranks)),
      scale_(scale),
      dtype_(dtype),
      a_(ranks_.size()),
      b_(ranks_.size()),
      all_(host_allocator(), 16) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> draw;
  for (std::size_t target = 0; target < ranks_.size(); ++target) {
    if (ranks_[target] == 0) continue;
    const LoraTarget& shape = targets.at(static_cast<std::int32_t>(target));
    a_[target] = Buffer(host_allocator(), ranks_[target] * shape.in_features * dtype_bytes(dtype));
    b_[target] = Buffer(host_allocator(), ranks_[target] * shape.out_features * dtype_bytes(dtype));
    const LoraPair pair = weights().pairs()[target];
    for (const Tensor& half : {pair.a, pair.b}) {
      for (std::int64_t i = 0; i < half.num_elements(); ++i) put(half, i, draw(bits));
    }
  }
}

AdapterWeights TestAdapter::weights() const {
  std::vector<LoraPair> pairs(ranks_.size());
  for (std::size_t target = 0; target < ranks_.size(); ++target) {
    if (a_[target].raw() == nullptr) continue;
    const LoraTarget& shape = targets_.at(static_cast<std::int32_t>(target));
    pairs[target] = {.a = a_[target].view(dtype_, {ranks_[target], shape.in_features}),
                     .b = b_[target].view(dtype_, {ranks_[target], shape.out_features}),
                     .scale = scale_};
  }
  const AdapterIdentity identity = digest_of(pairs);
  return {all_.view(DType::kUInt8, {16}), std::move(pairs), identity};
}

Dense TestAdapter::change(std::int32_t target) const {
  return product_of(weights().pairs()[at(target)], targets_.at(target));
}

TestAdapter TestAdapter::with_idle_ranks() const {
  std::vector<std::int64_t> ranks = ranks_;
  for (std::int64_t& rank : ranks) rank *= 2;
  TestAdapter idle(targets_, ranks, scale_, dtype_, 1);
  idle.fill(0.0F);
  for (std::size_t target = 0; target < ranks_.size(); ++target) {
    if (ranks_[target] == 0) continue;
    const LoraPair from = weights().pairs()[target];
    const LoraPair to = idle.weights().pairs()[target];
    std::copy_n(static_cast<const std::byte*>(from.a.raw()), from.a.num_bytes(), static_cast<std::byte*>(to.a.raw()));
    std::copy_n(static_cast<const std::byte*>(from.b.raw()), from.b.num_bytes(), static_cast<std::byte*>(to.b.raw()));
  }
  return idle;
}

void TestAdapter::fill(float value) {
  const AdapterWeights own = weights();
  for (const LoraPair& pair : own.pairs()) {
    if (!pair.a.defined()) continue;
    for (const Tensor& half : {pair.a, pair.b}) {
      for (std::int64_t i = 0; i < half.num_elements(); ++i) put(half, i, value);
    }
  }
}

Dense product_of(const LoraPair& pair, const LoraTarget& target) {
  const std::vector<float> a = float_values(pair.a);
  const std::vector<float> b = float_values(pair.b);
  const std::vector<RowRange> rows = target.row_order.empty() ? identity_rows(target.out_features) : target.row_order;
  Dense product(at(target.out_features * target.in_features));
  std::int64_t column = 0;
  for (const RowRange& range : rows) {
    for (std::int64_t row = range.begin; row < range.begin + range.count; ++row, ++column) {
      for (std::int64_t j = 0; j < target.in_features; ++j) {
        double sum = 0.0;
        for (std::int64_t r = 0; r < pair.a.dim(0); ++r) {
          sum += static_cast<double>(b[at(r * target.out_features + column)]) *
                 static_cast<double>(a[at(r * target.in_features + j)]);
        }
        product[at(row * target.in_features + j)] = sum * static_cast<double>(pair.scale);
      }
    }
  }
  return product;
}

Dense merge_in_double(std::vector<Dense> changes, const std::vector<float>& weights,
                      const std::vector<std::uint64_t>& seeds, const AdapterMerge& merge) {
  const bool draws = merge.strategy == MergeStrategy::kDareLinear || merge.strategy == MergeStrategy::kDareTies;
  const bool elects = merge.strategy == MergeStrategy::kTies || merge.strategy == MergeStrategy::kDareTies;
  for (std::size_t member = 0; member < changes.size(); ++member) {
    if (merge.strategy == MergeStrategy::kTies) keep_largest(changes[member], merge.density);
    if (draws) keep_drawn(changes[member], seeds[member], merge.density);
  }
  Dense merged(changes.at(0).size());
  for (std::size_t i = 0; i < merged.size(); ++i) {
    if (elects) {
      merged[i] = elect(changes, weights, i, merge.election);
    } else {
      for (std::size_t member = 0; member < changes.size(); ++member) {
        merged[i] += static_cast<double>(weights[member]) * changes[member][i];
      }
    }
  }
  return merged;
}

std::uint64_t reference_seed(const AdapterMerge& merge, const std::string& path, std::size_t member) {
  return seed_of(fmt::format("{} {} {}", member, path, merge_text(merge)));
}

Dense project_in_double(const Dense& delta, const std::vector<LoraPair>& members, const LoraTarget& target) {
  const std::int64_t in = target.in_features;
  const std::int64_t out = target.out_features;
  std::vector<Dense> basis;
  for (const LoraPair& member : members) {
    const std::vector<float> a = float_values(member.a);
    for (std::int64_t r = 0; r < member.a.dim(0); ++r) {
      Dense image(at(out));
      for (std::int64_t row = 0; row < out; ++row) {
        for (std::int64_t j = 0; j < in; ++j) {
          image[at(row)] += delta[at(row * in + j)] * static_cast<double>(a[at(r * in + j)]);
        }
      }
      for (const Dense& other : basis) {
        const double along = std::inner_product(image.begin(), image.end(), other.begin(), 0.0);
        for (std::size_t i = 0; i < image.size(); ++i) image[i] -= along * other[i];
      }
      const double length = std::sqrt(std::inner_product(image.begin(), image.end(), image.begin(), 0.0));
      if (length < 1e-9) continue;
      for (double& value : image) value /= length;
      basis.push_back(std::move(image));
    }
  }
  Dense projected(delta.size());
  for (const Dense& direction : basis) {
    for (std::int64_t j = 0; j < in; ++j) {
      double along = 0.0;
      for (std::int64_t row = 0; row < out; ++row) along += direction[at(row)] * delta[at(row * in + j)];
      for (std::int64_t row = 0; row < out; ++row) projected[at(row * in + j)] += along * direction[at(row)];
    }
  }
  return projected;
}

double worst_difference(const Dense& found, const Dense& expected) {
  double largest = 1e-30;
  double worst = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(found.at(i) - expected[i]));
  }
  return worst / largest;
}

}  // namespace shoal
