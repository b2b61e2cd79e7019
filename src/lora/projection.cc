#include "lora/projection.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shoal {
namespace {

// In 16 lanes, so that it runs in vectors; their order is fixed.
float dot(const float* x, const float* y, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  }
  float sum = 0.0F;
  for (; i < count; ++i) sum += x[i] * y[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

double dot_in_double(const float* x, const float* y, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

// The rows of `vectors` [count, length] become orthonormal; one that depends on those before it becomes zero.
// Modified Gram-Schmidt, each row twice: once leaves errors of the size of what it removed.
void orthonormalize(std::vector<float>& vectors, std::int64_t count, std::int64_t length) {
  constexpr double kDependent = 1e-5;  // of its length: rounding of float32 sums, and nothing of its own
  for (std::int64_t i = 0; i < count; ++i) {
    float* const own = vectors.data() + i * length;
    const double before = std::sqrt(dot_in_double(own, own, length));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t k = 0; k < i; ++k) {
        const float* const other = vectors.data() + k * length;
        const auto along = static_cast<float>(dot_in_double(own, other, length));
        for (std::int64_t j = 0; j < length; ++j) own[j] -= along * other[j];
      }
    }
    const double after = std::sqrt(dot_in_double(own, own, length));
    const bool depends = !(after > kDependent * before);
    for (std::int64_t j = 0; j < length; ++j) own[j] = depends ? 0.0F : static_cast<float>(own[j] / after);
  }
}

}  // namespace

bool write_projected(MergedDelta& delta, std::span<const std::int64_t> columns, const std::function<bool()>& stopped,
                     LoraPair& pair, MergeShare& share) {
  const std::int64_t rank = pair.a.dim(0);
  const std::int64_t in_features = pair.a.dim(1);
  const std::int64_t out_features = pair.b.dim(1);
  std::vector<float> basis(static_cast<std::size_t>(rank * out_features));  // [rank, out], in the order of D's rows
  bool is_stopped = false;
  delta.for_rows([&](std::int64_t first_row, std::span<const float> values) {
    const std::int64_t num_rows = std::ssize(values) / in_features;
    std::int64_t direction = 0;
    for (const MergeMember& member : delta.members()) {
      for (std::int64_t r = 0; r < member.rank; ++r, ++direction) {
        const float* const a = member.a.data() + r * in_features;
        float* const image = basis.data() + direction * out_features + first_row;
        for (std::int64_t i = 0; i < num_rows; ++i) image[i] = dot(values.data() + i * in_features, a, in_features);
      }
    }
    share.all += dot_in_double(values.data(), values.data(), std::ssize(values));
    is_stopped = stopped();
    return !is_stopped;
  });
  if (is_stopped) return false;
  orthonormalize(basis, rank, out_features);
  std::fill_n(pair.a.data<float>(), pair.a.num_elements(), 0.0F);
  delta.for_rows([&](std::int64_t first_row, std::span<const float> values) {
    const std::int64_t num_rows = std::ssize(values) / in_features;
    for (std::int64_t r = 0; r < rank; ++r) {
      float* const a = pair.a.row<float>(r);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        const float along = basis[static_cast<std::size_t>(r * out_features + first_row + i)];
        const float* const row = values.data() + i * in_features;
        for (std::int64_t j = 0; j < in_features; ++j) a[j] += along * row[j];
      }
    }
    is_stopped = stopped();
    return !is_stopped;
  });
  if (is_stopped) return false;
  for (std::int64_t r = 0; r < rank; ++r) {
    for (std::int64_t row = 0; row < out_features; ++row) {
      pair.b.row<float>(r)[columns[static_cast<std::size_t>(row)]] =
          basis[static_cast<std::size_t>(r * out_features + row)];
    }
  }
  share.kept += dot_in_double(pair.a.data<float>(), pair.a.data<float>(), pair.a.num_elements());
  return true;
}

}  // namespace shoal
