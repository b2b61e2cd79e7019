#include <vector>

#include "ops/reference/float_access.h"
#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

// y += (x A^T) * scale B^T: x [in], y [part columns].
void add_delta(const LoraPair& pair, const float* x, float* y) {
  const std::int64_t rank = pair.a.dim(0);
  const std::int64_t num_inputs = pair.a.dim(1);
  const std::int64_t num_columns = pair.b.dim(1);
  std::vector<double> shrunk(static_cast<std::size_t>(rank), 0.0);
  for (std::int64_t r = 0; r < rank; ++r) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < num_inputs; ++k) {
      sum += double{x[k]} * double{read_float(pair.a.raw(), pair.a.dtype(), r * num_inputs + k)};
    }
    shrunk[static_cast<std::size_t>(r)] = sum * double{pair.scale};
  }
  for (std::int64_t n = 0; n < num_columns; ++n) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < rank; ++r) {
      sum +=
          shrunk[static_cast<std::size_t>(r)] * double{read_float(pair.b.raw(), pair.b.dtype(), r * num_columns + n)};
    }
    y[n] = static_cast<float>(double{y[n]} + sum);
  }
}

}  // namespace

void ReferenceBackend::lora_add(Context&, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                                const Tensor& out) const {
  for (const LoraGroup& group : batch.groups) {
    const auto rows = batch.host_token_rows.subspan(static_cast<std::size_t>(group.token_begin),
                                                    static_cast<std::size_t>(group.token_count));
    for (const LoraPart& part : parts) {
      const LoraPair& pair = group.pairs[static_cast<std::size_t>(part.target_id)];
      if (!pair.a.defined()) continue;
      for (const std::int32_t row : rows) add_delta(pair, x.row<float>(row), out.row<float>(row) + part.column_begin);
    }
  }
}

}  // namespace shoal
