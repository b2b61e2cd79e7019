#include <cmath>

#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

// y = (x - mean) / sqrt(var + epsilon) * weight + bias; all [width], bias may be null, y may be x.
void layer_norm_row(const float* x, const float* weight, const float* bias, std::int64_t width, float epsilon,
                    float* y) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < width; ++i) sum += double{x[i]};
  const double mean = sum / static_cast<double>(width);
  double squares = 0.0;
  for (std::int64_t i = 0; i < width; ++i) squares += (double{x[i]} - mean) * (double{x[i]} - mean);
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(width) + double{epsilon});
  for (std::int64_t i = 0; i < width; ++i) {
    const double shift = bias != nullptr ? double{bias[i]} : 0.0;
    y[i] = static_cast<float>((double{x[i]} - mean) * inverse * double{weight[i]} + shift);
  }
}

}  // namespace

void ReferenceBackend::rms_norm(Context&, const Tensor& x, const Tensor& weight, float epsilon,
                                const Tensor& out) const {
  const float* w = weight.data<float>();
  const std::int64_t hidden = x.dim(1);
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    const float* x_row = x.row<float>(t);
    float* y = out.row<float>(t);
    double squares = 0.0;
    for (std::int64_t i = 0; i < hidden; ++i) squares += double{x_row[i]} * double{x_row[i]};
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + double{epsilon});
    for (std::int64_t i = 0; i < hidden; ++i) y[i] = static_cast<float>(double{x_row[i]} * inverse * double{w[i]});
  }
}

void ReferenceBackend::layer_norm(Context&, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                                  const Tensor& out) const {
  const float* b = bias.defined() ? bias.data<float>() : nullptr;
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    layer_norm_row(x.row<float>(t), weight.data<float>(), b, x.dim(1), epsilon, out.row<float>(t));
  }
}

void ReferenceBackend::head_layer_norm(Context&, const Tensor& weight, float epsilon, const Tensor& x) const {
  const std::int64_t head_dim = x.dim(2);
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t h = 0; h < x.dim(1); ++h) {
      float* head = x.row<float>(t) + h * head_dim;
      layer_norm_row(head, weight.row<float>(h), nullptr, head_dim, epsilon, head);
    }
  }
}

}  // namespace shoal
