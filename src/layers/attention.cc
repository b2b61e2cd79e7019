#include "layers/attention.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace shoal {

Attention::Attention(Linear qkv, Linear dense, const AttentionOptions& options, std::optional<QkNorm> qk_norm)
    : qkv_(std::move(qkv)), dense_(std::move(dense)), options_(options), qk_norm_(std::move(qk_norm)) {
  CHECK_EQ(qkv_.out_features(), (options.heads + 2 * options.kv_heads) * options.head_dim);
  CHECK_EQ(dense_.in_features(), options.heads * options.head_dim);
}

void Attention::forward_add(Context& ctx, const ForwardInput& in, const Tensor& x, const Tensor& residual) const {
  const Arena::Scope scope(ctx.arena);
  dense_.forward_add(ctx, attend_to(ctx, in, x), in.adapter_data, residual);
}

void Attention::forward_add_partial(Context& ctx, const ForwardInput& in, const Tensor& x,
                                    const Tensor& partial) const {
  const Arena::Scope scope(ctx.arena);
  dense_.forward_add_partial(ctx, attend_to(ctx, in, x), in.adapter_data, partial);
}

Tensor Attention::attend_to(Context& ctx, const ForwardInput& in, const Tensor& x) const {
  const Tensor qkv = qkv_.forward(ctx, x, in.adapter_data);
  const Tensor attended = ctx.arena.take(dense_.in_dtype(ctx.backend), {x.dim(0), query_width()});
  attend(ctx, in, qkv, attended);
  return attended;
}

void Attention::attend(Context& ctx, const ForwardInput& in, const Tensor& qkv, const Tensor& out) const {
  const std::int64_t key_width = options_.kv_heads * options_.head_dim;
  const Tensor query = qkv.columns(0, query_width()).with_row_shape({options_.heads, options_.head_dim});
  const Tensor key = qkv.columns(query_width(), key_width).with_row_shape({options_.kv_heads, options_.head_dim});
  const Tensor value =
      qkv.columns(query_width() + key_width, key_width).with_row_shape({options_.kv_heads, options_.head_dim});
  if (qk_norm_) {
    ops::head_layer_norm(ctx, qk_norm_->query_weight.values, qk_norm_->epsilon, query);
    ops::head_layer_norm(ctx, qk_norm_->key_weight.values, qk_norm_->epsilon, key);
  }
  const LayerCache& cache = in.kv_cache[static_cast<std::size_t>(options_.layer)];
  // Our engine writes every token and frees blocks that fall out of a window after the step.
  CHECK(!in.prefill_cache_indices.defined());
  if (options_.rotary != nullptr) {
    ops::rotary_write_cache(ctx, {.query = query,
                                  .key = key,
                                  .value = value,
                                  .positions = in.position_ids,
                                  .cos_sin = options_.rotary->cos_sin(),
                                  .style = options_.rotary->style(),
                                  .slots = in.slots,
                                  .key_cache = cache.key,
                                  .value_cache = cache.value});
  } else {
    ops::write_cache(ctx, key, value, in.slots, cache.key, cache.value);
  }
  const AttentionInput attention{.query = query,
                                 .key_cache = cache.key,
                                 .value_cache = cache.value,
                                 .block_tables = in.block_tables,
                                 .seqlen = in.seqlen,
                                 .scale = 1.0F / std::sqrt(static_cast<float>(options_.head_dim)),
                                 .sliding_window = options_.sliding_window,
                                 .alibi_slopes = options_.alibi_slopes != nullptr ? *options_.alibi_slopes : Tensor()};
  ops::attention(ctx, attention, out.with_row_shape({options_.heads, options_.head_dim}));
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  std::int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes;
  for (std::int64_t i = 1; i <= power; ++i) {
    slopes.push_back(static_cast<float>(std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(power))));
  }
  // Head counts between powers of two take every other slope of twice as many.
  for (std::int64_t i = 1; static_cast<std::int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(static_cast<float>(std::pow(2.0, -4.0 * static_cast<double>(i) / static_cast<double>(power))));
  }
  return slopes;
}

}  // namespace shoal
