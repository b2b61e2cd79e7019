// Embedding: token ids (and learned positions) to hidden states. Used by the models.
#pragma once

#include "layers/forward_input.h"
#include "layers/load_context.h"

namespace shoal {

class Embedding {
 public:
  Embedding() = default;
  Embedding(LoadContext& load, const std::string& weight_name, std::int64_t rows, std::int64_t hidden);

  // -> [tokens, hidden] float32, from the arena: the residual stream keeps all of its bits whatever the weights are.
  // ids i64 or i32 [tokens].
  Tensor forward(Context& ctx, const Tensor& ids) const;
  // hidden += table[ids]
  void forward_add(Context& ctx, const Tensor& ids, const Tensor& hidden) const;

  // [rows, hidden]: a tied head reads the same storage.
  const Matrix& table() const { return table_; }
  const std::string& weight_name() const { return weight_name_; }

 private:
  std::string weight_name_;
  Matrix table_;
};

}  // namespace shoal
