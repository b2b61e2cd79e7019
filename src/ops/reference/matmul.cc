#include <vector>

#include "ops/reference/float_access.h"
#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

std::vector<float> weight_row(const Matrix& weight, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(weight.cols));
  for (std::int64_t col = 0; col < weight.cols; ++col) {
    values[static_cast<std::size_t>(col)] = read_float(weight.storage.raw(), weight.dtype, row * weight.cols + col);
  }
  return values;
}

}  // namespace

void ReferenceBackend::matmul(Context&, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                              const Tensor& out) const {
  CHECK(weight.format == WeightFormat::kPlain);
  for (std::int64_t n = 0; n < weight.rows; ++n) {
    const std::vector<float> w = weight_row(weight, n);
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      const float* x_row = x.row<float>(t);
      double sum = bias.defined() ? double{bias.data<float>()[n]} : 0.0;
      for (std::int64_t k = 0; k < weight.cols; ++k) sum += double{x_row[k]} * double{w[static_cast<std::size_t>(k)]};
      float& y = out.row<float>(t)[n];
      y = static_cast<float>(mode == MatmulOutput::kAccumulate ? double{y} + sum : sum);
    }
  }
}

void ReferenceBackend::embedding(Context&, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                                 const Tensor& out) const {
  CHECK(table.format == WeightFormat::kPlain);
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    const std::int64_t id =
        ids.dtype() == DType::kInt32 ? std::int64_t{ids.data<std::int32_t>()[t]} : ids.data<std::int64_t>()[t];
    const std::vector<float> row = weight_row(table, id);
    float* y = out.row<float>(t);
    for (std::int64_t i = 0; i < table.cols; ++i) {
      const float value = row[static_cast<std::size_t>(i)];
      y[i] = mode == EmbeddingOutput::kAccumulate ? y[i] + value : value;
    }
  }
}

}  // namespace shoal
