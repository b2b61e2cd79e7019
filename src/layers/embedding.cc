#include "layers/embedding.h"

#include "ops/matmul.h"

namespace shoal {

Embedding::Embedding(LoadContext& load, const std::string& weight_name, std::int64_t rows, std::int64_t hidden)
    : weight_name_(weight_name), table_(load.backend.allocate_matrix(load.normed_dtype(), rows, hidden)) {
  const MatrixRequest request{.name = weight_name, .rows = rows, .cols = hidden};
  load_rows(load, table_, 0, request);
}

Tensor Embedding::forward(Context& ctx, const Tensor& ids) const {
  const Tensor hidden = ctx.arena.take(DType::kFloat32, {ids.dim(0), table_.cols});
  ops::embedding(ctx, ids, table_, EmbeddingOutput::kOverwrite, hidden);
  return hidden;
}

void Embedding::forward_add(Context& ctx, const Tensor& ids, const Tensor& hidden) const {
  ops::embedding(ctx, ids, table_, EmbeddingOutput::kAccumulate, hidden);
}

}  // namespace shoal
