#include "parity/fault_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "core/block_size.h"
#include "layers/attention.h"

namespace shoal {
namespace {

// The keys that one query token sees: those before `end`, of them the last `window` (0: all).
struct SeenKeys {
  std::int64_t end = 0;
  std::int64_t window = 0;
};

// One query token, whose sequence had `cached` keys before this step and has `total` after it.
struct QueryToken {
  std::int64_t position = 0;
  std::int64_t cached = 0;
  std::int64_t total = 0;
};

using SeenKeysOf = SeenKeys (*)(const QueryToken& token);

// Attention one token at a time, each as the last of a sequence as long as `seen` says.
void attend_token_by_token(const Backend& right, Context& ctx, const AttentionInput& in, const Tensor& out,
                           SeenKeysOf seen) {
  std::int64_t row = 0;
  for (std::int64_t s = 0; s < in.seqlen.num_sequences(); ++s) {
    const std::int64_t cached = in.seqlen.host_cached[static_cast<std::size_t>(s)];
    const std::int64_t query = in.seqlen.host_query[static_cast<std::size_t>(s)];
    for (std::int64_t i = 0; i < query; ++i, ++row) {
      const SeenKeys keys = seen({.position = cached + i, .cached = cached, .total = cached + query});
      std::array<std::int32_t, 2> query_length{0, 1};
      std::array<std::int32_t, 2> cached_length{0, static_cast<std::int32_t>(keys.end - 1)};
      const SequenceLengths alone{.query = Tensor(&query_length[1], DType::kInt32, {1}),
                                  .cached = Tensor(&cached_length[1], DType::kInt32, {1}),
                                  .cu_query = Tensor(query_length.data(), DType::kInt32, {2}),
                                  .cu_cached = Tensor(cached_length.data(), DType::kInt32, {2}),
                                  .host_query = std::span(query_length).subspan(1),
                                  .host_cached = std::span(cached_length).subspan(1),
                                  .host_cu_query = query_length,
                                  .host_cu_cached = cached_length,
                                  .num_decode = 1};
      const AttentionInput token{.query = in.query.rows(row, 1),
                                 .key_cache = in.key_cache,
                                 .value_cache = in.value_cache,
                                 .block_tables = in.block_tables.rows(s, 1),
                                 .seqlen = alone,
                                 .scale = in.scale,
                                 .sliding_window = keys.window > 0 ? keys.window : in.sliding_window,
                                 .alibi_slopes = in.alibi_slopes};
      right.attention(ctx, token, out.rows(row, 1));
    }
  }
}

OpFaults with_scale(const Backend& right, float (*scale)(const AttentionInput& in)) {
  return {.attention = [&right, scale](Context& ctx, AttentionInput in, const Tensor& out) {
    in.scale = scale(in);
    right.attention(ctx, in, out);
  }};
}

OpFaults with_slopes(const Backend& right, std::vector<float> (*slopes)(const AttentionInput& in)) {
  return {.attention = [&right, slopes](Context& ctx, AttentionInput in, const Tensor& out) {
    std::vector<float> wrong = slopes(in);
    in.alibi_slopes = Tensor(wrong.data(), DType::kFloat32, {in.query.dim(1)});
    right.attention(ctx, in, out);
  }};
}

// Heads in the order `from`: x, out [tokens, heads, head_dim].
void copy_heads(const Tensor& x, const std::vector<std::int64_t>& from, const Tensor& out) {
  const std::int64_t width = x.dim(2);
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t h = 0; h < x.dim(1); ++h) {
      std::copy_n(x.row<float>(t) + from[static_cast<std::size_t>(h)] * width, width, out.row<float>(t) + h * width);
    }
  }
}

}  // namespace

OpFaults softmax_scale_without_root(const Backend& right) {
  return with_scale(right, [](const AttentionInput& in) { return 1.0F / static_cast<float>(in.query.dim(2)); });
}

OpFaults softmax_scale_of_hidden(const Backend& right) {
  return with_scale(right, [](const AttentionInput& /*in*/) { return 1.0F / std::sqrt(64.0F / 2.0F); });
}

OpFaults kv_head_modulo(const Backend& right) {
  return {.attention = [&right](Context& ctx, AttentionInput in, const Tensor& out) {
    const Arena::Scope scope(ctx.arena);
    const std::int64_t heads = in.query.dim(1);
    const std::int64_t kv_heads = in.key_cache.dim(2);
    std::vector<std::int64_t> head_at(static_cast<std::size_t>(heads));  // heads sorted by the KV head they read
    std::vector<std::int64_t> place_of(static_cast<std::size_t>(heads));
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t place = h % kv_heads * (heads / kv_heads) + h / kv_heads;
      head_at[static_cast<std::size_t>(place)] = h;
      place_of[static_cast<std::size_t>(h)] = place;
    }
    const Tensor query = ctx.arena.take(out.dtype(), {out.dim(0), heads, out.dim(2)});
    const Tensor attended = ctx.arena.take(out.dtype(), {out.dim(0), heads, out.dim(2)});
    copy_heads(in.query, head_at, query);
    in.query = query;
    right.attention(ctx, in, attended);
    copy_heads(attended, place_of, out);
  }};
}

OpFaults sees_next_key(const Backend& right) {
  return {.attention = [&right](Context& ctx, const AttentionInput& in, const Tensor& out) {
    attend_token_by_token(right, ctx, in, out, [](const QueryToken& token) {
      return SeenKeys{.end = std::min(token.position + 2, token.total)};
    });
  }};
}

OpFaults misses_oldest_key(const Backend& right) {
  return {.attention = [&right](Context& ctx, const AttentionInput& in, const Tensor& out) {
    attend_token_by_token(right, ctx, in, out, [](const QueryToken& token) {
      return SeenKeys{.end = token.position + 1, .window = std::max<std::int64_t>(token.position, 1)};
    });
  }};
}

OpFaults reads_whole_block(const Backend& right) {
  return {.attention = [&right](Context& ctx, const AttentionInput& in, const Tensor& out) {
    attend_token_by_token(right, ctx, in, out, [](const QueryToken& token) {
      const bool last = token.position + 1 == token.total;
      const std::int64_t padded = (token.total + kBlockSize - 1) / kBlockSize * kBlockSize;
      return SeenKeys{.end = last ? padded : token.position + 1};
    });
  }};
}

OpFaults forgets_earlier_chunks(const Backend& right) {
  return {.attention = [&right](Context& ctx, const AttentionInput& in, const Tensor& out) {
    attend_token_by_token(right, ctx, in, out, [](const QueryToken& token) {
      return SeenKeys{.end = token.position + 1, .window = token.position - token.cached + 1};
    });
  }};
}

OpFaults window_on_even_layers(const Backend& right) {
  // A layer is known by its cache, since each has its own.
  auto layers = std::make_shared<std::vector<void*>>();
  return {.attention = [&right, layers](Context& ctx, AttentionInput in, const Tensor& out) {
    const auto found = std::find(layers->begin(), layers->end(), in.key_cache.raw());
    const auto layer = found - layers->begin();
    if (found == layers->end()) layers->push_back(in.key_cache.raw());
    if (layer % 2 == 1) in.sliding_window = 0;
    right.attention(ctx, in, out);
  }};
}

OpFaults block_table_of_neighbour(const Backend& right) {
  return {.attention = [&right](Context& ctx, AttentionInput in, const Tensor& out) {
    const std::int64_t sequences = in.block_tables.dim(0);
    const std::int64_t width = in.block_tables.dim(1);
    std::vector<std::int32_t> tables;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int32_t* own = in.block_tables.row<std::int32_t>(s);
      const std::int32_t* wrong = in.block_tables.row<std::int32_t>((s + 1) % sequences);
      // A shorter neighbour has no block there.
      for (std::int64_t i = 0; i < width; ++i) tables.push_back(wrong[i] >= 0 ? wrong[i] : own[i]);
    }
    in.block_tables = Tensor(tables.data(), DType::kInt32, {sequences, width});
    right.attention(ctx, in, out);
  }};
}

OpFaults alibi_after_scaling(const Backend& right) {
  return with_slopes(right, [](const AttentionInput& in) {
    std::vector<float> slopes;
    for (const float slope : in.alibi_slopes.span<float>()) slopes.push_back(slope / in.scale);
    return slopes;
  });
}

OpFaults alibi_slopes_of_twice_the_heads(const Backend& right) {
  return with_slopes(right, [](const AttentionInput& in) { return alibi_slopes(2 * in.query.dim(1)); });
}

OpFaults key_and_value_swapped(const Backend& right) {
  return {.write_cache = [&right](Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                                  const Tensor& key_cache, const Tensor& value_cache) {
    right.write_cache(ctx, value, key, slots, key_cache, value_cache);
  }};
}

OpFaults cache_one_slot_late(const Backend& right) {
  return {.write_cache = [&right](Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                                  const Tensor& key_cache, const Tensor& value_cache) {
    std::vector<std::int64_t> late;
    for (const std::int64_t slot : slots.span<std::int64_t>()) {
      late.push_back((slot + 1) % (key_cache.dim(0) * kBlockSize));
    }
    right.write_cache(ctx, key, value, Tensor(late.data(), DType::kInt64, {slots.dim(0)}), key_cache, value_cache);
  }};
}

OpFaults cache_rounds_to_bfloat16(const Backend& right) {
  return {.write_cache = [&right](Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                                  const Tensor& key_cache, const Tensor& value_cache) {
    for (const Tensor& x : {key, value}) {
      for (std::int64_t t = 0; t < x.dim(0); ++t) {
        for (float& element : std::span(x.row<float>(t), static_cast<std::size_t>(x.row_elements()))) {
          element = to_float(to_bfloat16(element));
        }
      }
    }
    right.write_cache(ctx, key, value, slots, key_cache, value_cache);
  }};
}

}  // namespace shoal
