#include "layers/lm_head.h"

#include <spdlog/spdlog.h>

#include "ops/elementwise.h"
#include "ops/lora.h"
#include "ops/matmul.h"

namespace shoal {

LmHead::LmHead(LoadContext& load, const std::string& name, const Embedding& embedding, HeadTie tie)
    : embedding_(&embedding) {
  const Matrix& table = embedding.table();
  const std::int32_t target_id =
      load.lora_targets.add({.path = name, .in_features = table.cols, .out_features = table.rows, .row_order = {}});
  lora_parts_.push_back({.target_id = target_id, .column_begin = 0, .column_count = table.rows});

  const std::string weight_name = name + ".weight";
  if (tie == HeadTie::kTiedToEmbedding) {
    if (!load.weights.has(weight_name) || weight_name == embedding.weight_name()) return;
    if (!load.weights.equal_tensors(weight_name, embedding.weight_name())) {
      spdlog::warn("{} differs from {} although tie_word_embeddings is true: the embedding is used for both",
                   weight_name, embedding.weight_name());
    }
    load.weights.mark_used(weight_name);
    return;
  }
  own_weight_ = load.backend.allocate_matrix(load.normed_dtype(), table.rows, table.cols);
  const MatrixRequest request{.name = weight_name, .rows = table.rows, .cols = table.cols};
  load_rows(load, own_weight_, 0, request);
}

Tensor LmHead::forward(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const {
  const Tensor logits = ctx.arena.take(DType::kFloat32, {hidden.dim(0), weight().rows});
  ops::matmul(ctx, hidden, weight(), Tensor(), MatmulOutput::kOverwrite, logits);
  if (!lora.empty()) ops::lora_add(ctx, hidden, lora, lora_parts_, logits);
  if (logit_scale_ != 1.0F) ops::scale(ctx, logits, logit_scale_, logits);
  return logits;
}

ForwardOutput finish_forward(Context& ctx, const ForwardInput& in, const Tensor& hidden, const Norm& final_norm,
                             const LmHead& lm_head) {
  Tensor selected = hidden;
  if (in.lm_head_indices.defined()) {
    selected = ctx.arena.take(hidden.dtype(), {in.lm_head_indices.dim(0), hidden.dim(1)});
    ops::gather_rows(ctx, hidden, in.lm_head_indices, selected);
  }
  const Tensor normed = final_norm.forward(ctx, selected);
  if (in.skip_lm_head) return {.logits = normed, .speculative_logits = Tensor()};
  return {.logits = lm_head.forward(ctx, normed, in.adapter_data.logits), .speculative_logits = Tensor()};
}

}  // namespace shoal
