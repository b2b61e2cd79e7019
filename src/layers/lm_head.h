// LmHead: hidden states to logits: row selection, final norm, product, LoRA, scale. Used by every model, and through
// CausalLm::lm_head by whoever asked a forward to skip it.
#pragma once

#include <optional>

#include "layers/embedding.h"
#include "layers/forward_input.h"
#include "layers/norm.h"

namespace shoal {

enum class HeadTie : std::uint8_t { kOwnWeight, kTiedToEmbedding };

class LmHead {
 public:
  LmHead() = default;
  // Reads `name`.weight, or shares the table of `embedding`, which outlives the head. A tied checkpoint may hold both
  // halves: where they differ the embedding wins, with a warning.
  LmHead(LoadContext& load, const std::string& name, const Embedding& embedding, HeadTie tie);

  // Logits of every row, multiplied by the scale: hidden [rows, hidden] activations, `lora` grouped over these rows.
  // -> float32 [rows, vocab], from the arena.
  Tensor forward(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const;

  void set_logit_scale(float scale) { logit_scale_ = scale; }

 private:
  const Matrix& weight() const { return own_weight_.defined() ? own_weight_ : embedding_->table(); }

  Matrix own_weight_;  // [vocab, hidden], undefined when tied
  const Embedding* embedding_ = nullptr;
  std::vector<LoraPart> lora_parts_;
  float logit_scale_ = 1.0F;
};

// The end of every model's forward: selects the rows of lm_head_indices, applies the final norm, then the head unless
// the caller skips it.
ForwardOutput finish_forward(Context& ctx, const ForwardInput& in, const Tensor& hidden, const Norm& final_norm,
                             const LmHead& lm_head);

}  // namespace shoal
