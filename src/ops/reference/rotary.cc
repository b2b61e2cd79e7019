#include "ops/reference/reference_backend.h"

namespace shoal {

void ReferenceBackend::rotary(Context&, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                              const Tensor& x) const {
  const std::int64_t half = cos_sin.dim(1) / 2;
  const std::int64_t head_dim = x.dim(2);
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    const float* cosines = cos_sin.row<float>(positions.data<std::int32_t>()[t]);
    const float* sines = cosines + half;
    for (std::int64_t h = 0; h < x.dim(1); ++h) {
      float* head = x.row<float>(t) + h * head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const bool neighbours = style == RotaryStyle::kNeighbours;
        float& first = head[neighbours ? 2 * i : i];
        float& second = head[neighbours ? 2 * i + 1 : i + half];
        const double x1 = double{first};
        const double x2 = double{second};
        first = static_cast<float>(x1 * double{cosines[i]} - x2 * double{sines[i]});
        second = static_cast<float>(x2 * double{cosines[i]} + x1 * double{sines[i]});
      }
    }
  }
}

}  // namespace shoal
