#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGeluErf:
      return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;  // NaN stays NaN
  }
  CHECK(false);
  return 0.0;
}

}  // namespace

void ReferenceBackend::activation(Context&, Activation kind, const Tensor& x, const Tensor& out) const {
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t i = 0; i < x.dim(1); ++i) {
      out.row<float>(t)[i] = static_cast<float>(activate(kind, double{x.row<float>(t)[i]}));
    }
  }
}

void ReferenceBackend::gated_activation(Context&, Activation kind, const Tensor& gate_up, const Tensor& out) const {
  const std::int64_t width = out.dim(1);
  for (std::int64_t t = 0; t < out.dim(0); ++t) {
    const float* gate = gate_up.row<float>(t);
    const float* up = gate + width;
    for (std::int64_t i = 0; i < width; ++i) {
      out.row<float>(t)[i] = static_cast<float>(activate(kind, double{gate[i]}) * double{up[i]});
    }
  }
}

void ReferenceBackend::add(Context&, const Tensor& a, const Tensor& b, const Tensor& out) const {
  for (std::int64_t t = 0; t < out.dim(0); ++t) {
    for (std::int64_t i = 0; i < out.dim(1); ++i) out.row<float>(t)[i] = a.row<float>(t)[i] + b.row<float>(t)[i];
  }
}

void ReferenceBackend::mix(Context&, const Tensor& a, const Tensor& b, float t, const Tensor& out) const {
  for (std::int64_t row = 0; row < out.dim(0); ++row) {
    for (std::int64_t i = 0; i < out.dim(1); ++i) {
      out.row<float>(row)[i] = a.row<float>(row)[i] * t + b.row<float>(row)[i] * (1.0F - t);
    }
  }
}

void ReferenceBackend::scale(Context&, const Tensor& x, float factor, const Tensor& out) const {
  for (std::int64_t t = 0; t < out.dim(0); ++t) {
    for (std::int64_t i = 0; i < out.dim(1); ++i) out.row<float>(t)[i] = x.row<float>(t)[i] * factor;
  }
}

void ReferenceBackend::gather_rows(Context&, const Tensor& x, const Tensor& indices, const Tensor& out) const {
  for (std::int64_t i = 0; i < indices.dim(0); ++i) {
    std::copy_n(x.row<float>(indices.data<std::int64_t>()[i]), x.dim(1), out.row<float>(i));
  }
}

}  // namespace shoal
