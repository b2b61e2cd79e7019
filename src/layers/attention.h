// Attention: projections, rotary, cache write and paged attention of one layer. Used by the models and ParallelBlock.
#pragma once

#include "layers/forward_input.h"
#include "layers/linear.h"
#include "layers/rotary.h"

namespace shoal {

struct AttentionOptions {
  std::int64_t layer = 0;  // index into ForwardInput::kv_cache
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  const Rotary* rotary = nullptr;        // null: no rotary (learned positions, ALiBi)
  const Tensor* alibi_slopes = nullptr;  // float32 [heads]; null: no ALiBi
  std::int64_t sliding_window = 0;       // keys that a query sees, itself included; 0: all
};

// LayerNorm of each query and key head with its own weight row, before rotary (Cohere's use_qk_norm).
struct QkNorm {
  Vector query_weight;  // [heads, head_dim]
  Vector key_weight;    // [kv_heads, head_dim]
  float epsilon = 0.0F;
};

class Attention {
 public:
  // qkv: hidden -> (heads + 2 kv_heads) * head_dim in the order Q | K | V; dense: heads * head_dim -> hidden.
  Attention(Linear qkv, Linear dense, const AttentionOptions& options, std::optional<QkNorm> qk_norm = std::nullopt);

  // residual += dense(attention(qkv(x))): x, residual [tokens, hidden] activations.
  void forward_add(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& residual) const;
  // The same before the reduction over ranks, for layers that reduce once for several products.
  void forward_add_partial(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& partial) const;
  // What lies between the two products: qkv float32 [tokens, (heads + 2 kv_heads) * head_dim], changed in place,
  // out [tokens, heads * head_dim] activations.
  void attend(Context& ctx, const ForwardInput& in, const Tensor& qkv, const Tensor& out) const;
  std::int64_t query_width() const { return options_.heads * options_.head_dim; }

  // The products, for a layer that merges them with others; what is left attends.
  Linear take_qkv() { return std::move(qkv_); }
  Linear take_dense() { return std::move(dense_); }

 private:
  // -> [tokens, heads * head_dim] activations, from the arena
  Tensor attend_to(Context& ctx, const ForwardInput& in, const Tensor& x) const;

  Linear qkv_;
  Linear dense_;
  AttentionOptions options_;
  std::optional<QkNorm> qk_norm_;
};

// The ALiBi slope of each head (Press et al., 2021), from the global head count, powers of two or not.
std::vector<float> alibi_slopes(std::int64_t heads);

}  // namespace shoal
