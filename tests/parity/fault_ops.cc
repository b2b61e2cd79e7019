#include "parity/fault_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace shoal {
namespace {

// A contiguous copy from the arena: x [rows, ...] float32.
Tensor copy_of(Context& ctx, const Tensor& x) {
  const Tensor copy = ctx.arena.take(DType::kFloat32, {x.dim(0), x.row_elements()});
  for (std::int64_t row = 0; row < x.dim(0); ++row) {
    std::copy_n(x.row<float>(row), x.row_elements(), copy.row<float>(row));
  }
  return copy;
}

// Rotary at other positions: positions i32 [tokens] of each call, keys told from queries by the number of heads.
OpFaults with_rotary_positions(const Backend& right,
                               void (*move)(std::vector<std::int32_t>& positions, const Tensor& x)) {
  return {.rotary = [&right, move](Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                                   const Tensor& x) {
    const std::span<const std::int32_t> given = positions.span<std::int32_t>();
    std::vector<std::int32_t> moved(given.begin(), given.end());
    move(moved, x);
    right.rotary(ctx, Tensor(moved.data(), DType::kInt32, {positions.dim(0)}), cos_sin, style, x);
  }};
}

// Positions counted from the first token that each sequence brings in this step.
template <typename T>
void restart(std::vector<T>& positions) {
  T first = 0;
  T previous = -2;
  for (T& position : positions) {
    if (position != previous + 1) first = position;
    previous = position;
    position -= first;
  }
}

OpFaults with_learned_positions(const Backend& right, void (*move)(std::vector<std::int32_t>& positions)) {
  return {.embedding = [&right, move](Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                                      const Tensor& out) {
    if (mode == EmbeddingOutput::kOverwrite) return right.embedding(ctx, ids, table, mode, out);
    const std::span<const std::int32_t> given = ids.span<std::int32_t>();
    std::vector<std::int32_t> moved(given.begin(), given.end());
    move(moved);
    right.embedding(ctx, Tensor(moved.data(), DType::kInt32, {ids.dim(0)}), table, mode, out);
  }};
}

// The bias of every product that `chosen` picks is left out.
OpFaults without_bias(const Backend& right, bool (*chosen)(const Matrix& weight, MatmulOutput mode)) {
  return {.matmul = [&right, chosen](Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias,
                                     MatmulOutput mode, const Tensor& out) {
    right.matmul(ctx, x, weight, chosen(weight, mode) ? Tensor() : bias, mode, out);
  }};
}

}  // namespace

OpFaults rotary_of_the_other_style(const Backend& right) {
  return {.rotary = [&right](Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                             const Tensor& x) {
    const bool half = style == RotaryStyle::kHalfSplit;
    right.rotary(ctx, positions, cos_sin, half ? RotaryStyle::kNeighbours : RotaryStyle::kHalfSplit, x);
  }};
}

// These two are used on solar-10.7b-like, which has four query heads and two of keys.
OpFaults rotary_of_queries_alone(const Backend& right) {
  return {.rotary = [&right](Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                             const Tensor& x) {
    if (x.dim(1) == 4) right.rotary(ctx, positions, cos_sin, style, x);
  }};
}

OpFaults rotary_queries_one_late(const Backend& right) {
  return with_rotary_positions(right, [](std::vector<std::int32_t>& positions, const Tensor& x) {
    if (x.dim(1) != 4) return;
    for (std::int32_t& position : positions) ++position;
  });
}

OpFaults rotary_restarts_each_step(const Backend& right) {
  return with_rotary_positions(right,
                               [](std::vector<std::int32_t>& positions, const Tensor& /*x*/) { restart(positions); });
}

OpFaults learned_position_one_late(const Backend& right) {
  return with_learned_positions(right, [](std::vector<std::int32_t>& positions) {
    for (std::int32_t& position : positions) ++position;
  });
}

OpFaults learned_position_restarts_each_step(const Backend& right) {
  return with_learned_positions(right, [](std::vector<std::int32_t>& positions) { restart(positions); });
}

OpFaults rms_weight_plus_one(const Backend& right) {
  return {.rms_norm = [&right](Context& ctx, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out) {
    std::vector<float> wrong;
    for (const float value : weight.span<float>()) wrong.push_back(value + 1.0F);
    right.rms_norm(ctx, x, Tensor(wrong.data(), DType::kFloat32, {weight.dim(0)}), epsilon, out);
  }};
}

OpFaults layer_norm_keeps_mean(const Backend& right) {
  return {.layer_norm = [&right](Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& /*bias*/,
                                 float epsilon, const Tensor& out) { right.rms_norm(ctx, x, weight, epsilon, out); }};
}

OpFaults layer_norm_without_bias(const Backend& right) {
  return {.layer_norm = [&right](Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& /*bias*/,
                                 float epsilon,
                                 const Tensor& out) { right.layer_norm(ctx, x, weight, Tensor(), epsilon, out); }};
}

// The sum of squares over n - 1: 1 / sqrt(v n / (n - 1) + eps) = sqrt((n - 1) / n) / sqrt(v + eps (n - 1) / n).
OpFaults layer_norm_of_sample_variance(const Backend& right) {
  return {.layer_norm = [&right](Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                                 const Tensor& out) {
    const auto width = static_cast<float>(weight.dim(0));
    const float share = (width - 1) / width;
    std::vector<float> wrong;
    for (const float value : weight.span<float>()) wrong.push_back(value * std::sqrt(share));
    right.layer_norm(ctx, x, Tensor(wrong.data(), DType::kFloat32, {weight.dim(0)}), bias, epsilon * share, out);
  }};
}

OpFaults qk_norm_skipped(const Backend& /*right*/) {
  return {.head_layer_norm = [](Context& /*ctx*/, const Tensor& /*weight*/, float /*epsilon*/, const Tensor& /*x*/) {}};
}

OpFaults qk_norm_of_first_head(const Backend& right) {
  return {.head_layer_norm = [&right](Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) {
    std::vector<float> first;
    for (std::int64_t head = 0; head < weight.dim(0); ++head) {
      first.insert(first.end(), weight.row<float>(0), weight.row<float>(0) + weight.dim(1));
    }
    right.head_layer_norm(ctx, Tensor(first.data(), DType::kFloat32, {weight.dim(0), weight.dim(1)}), epsilon, x);
  }};
}

OpFaults qk_norm_after_rotary(const Backend& right) {
  struct Norm {
    Tensor weight;
    float epsilon;
    void* x;
  };
  auto waiting = std::make_shared<std::vector<Norm>>();
  return {.head_layer_norm = [waiting](Context& /*ctx*/, const Tensor& weight, float epsilon,
                                       const Tensor& x) { waiting->push_back({weight, epsilon, x.raw()}); },
          .rotary =
              [&right, waiting](Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                                const Tensor& x) {
                right.rotary(ctx, positions, cos_sin, style, x);
                const auto norm = std::find_if(waiting->begin(), waiting->end(),
                                               [&](const Norm& candidate) { return candidate.x == x.raw(); });
                CHECK(norm != waiting->end());
                right.head_layer_norm(ctx, norm->weight, norm->epsilon, x);
                waiting->erase(norm);
              }};
}

OpFaults dense_bias_dropped(const Backend& right) {
  return without_bias(right, [](const Matrix& weight, MatmulOutput mode) {
    return mode == MatmulOutput::kAccumulate &&
           weight.cols == weight.rows;  // the attention's: no square MLP here has a bias
  });
}

OpFaults up_bias_dropped(const Backend& right) {
  return without_bias(right, [](const Matrix& weight, MatmulOutput mode) {
    return mode == MatmulOutput::kOverwrite && weight.rows == 160;  // santacoder-mqa's c_fc
  });
}

OpFaults query_bias_dropped(const Backend& right) {
  return without_bias(right, [](const Matrix& weight, MatmulOutput mode) {
    return mode == MatmulOutput::kOverwrite && weight.rows == 384;  // falcon-rw-like's query_key_value
  });
}

OpFaults residual_lost(const Backend& right) {
  return {.matmul = [&right](Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias,
                             MatmulOutput /*mode*/,
                             const Tensor& out) { right.matmul(ctx, x, weight, bias, MatmulOutput::kOverwrite, out); }};
}

OpFaults residual_twice(const Backend& right) {
  return {.matmul = [&right](Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                             const Tensor& out) {
    // The attention's output product, the square one.
    if (mode == MatmulOutput::kAccumulate && weight.cols == weight.rows) right.scale(ctx, out, 2.0F, out);
    right.matmul(ctx, x, weight, bias, mode, out);
  }};
}

// The MLP's first product (256 rows in falcon-7b-like) reads the norm of the sum that attention has been added to.
OpFaults parallel_as_sequential(const Backend& right) {
  struct LastNorm {
    Tensor hidden, weight, bias;
    float epsilon = 0.0F;
  };
  auto last = std::make_shared<LastNorm>();
  return {.matmul =
              [&right, last](Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                             const Tensor& out) {
                if (weight.rows != 256) return right.matmul(ctx, x, weight, bias, mode, out);
                const Arena::Scope scope(ctx.arena);
                const Tensor normed = ctx.arena.take(DType::kFloat32, {x.dim(0), x.dim(1)});
                right.layer_norm(ctx, last->hidden, last->weight, last->bias, last->epsilon, normed);
                right.matmul(ctx, normed, weight, bias, mode, out);
              },
          .layer_norm =
              [&right, last](Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                             const Tensor& out) {
                *last = {.hidden = x, .weight = weight, .bias = bias, .epsilon = epsilon};
                right.layer_norm(ctx, x, weight, bias, epsilon, out);
              }};
}

OpFaults activations_in_bfloat16(const Backend& right) {
  return {.matmul = [&right](Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                             const Tensor& out) {
    const Arena::Scope scope(ctx.arena);
    const Tensor rounded = copy_of(ctx, x);
    for (float& value : rounded.span<float>()) value = to_float(to_bfloat16(value));
    right.matmul(ctx, rounded, weight, bias, mode, out);
  }};
}

OpFaults mix_weight_on_the_other(const Backend& right) {
  return {.mix = [&right](Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) {
    right.mix(ctx, a, b, 1.0F - t, out);
  }};
}

// A save is a copy by `scale`: it waits until the layer's mixes are done, unless there is nothing older to mix.
OpFaults mix_before_save(const Backend& right) {
  struct Saves {
    std::vector<std::pair<Tensor, Tensor>> waiting;  // from, to
    std::vector<void*> written;                      // in this forward
  };
  auto saves = std::make_shared<Saves>();
  return {.rms_norm =
              [&right, saves](Context& ctx, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out) {
                for (const auto& [from, to] : saves->waiting) right.scale(ctx, from, 1.0F, to);
                saves->waiting.clear();
                right.rms_norm(ctx, x, weight, epsilon, out);
              },
          .scale =
              [&right, saves](Context& ctx, const Tensor& x, float factor, const Tensor& out) {
                const auto& written = saves->written;
                if (std::find(written.begin(), written.end(), out.raw()) != written.end()) {
                  saves->waiting.emplace_back(x, out);
                  return;
                }
                saves->written.push_back(out.raw());
                right.scale(ctx, x, factor, out);
              },
          .gather_rows =
              [&right, saves](Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) {
                saves->written.clear();
                right.gather_rows(ctx, x, indices, out);
              }};
}

OpFaults logit_scale_skipped(const Backend& right) {
  return {.scale = [&right](Context& ctx, const Tensor& x, float /*factor*/, const Tensor& out) {
    right.scale(ctx, x, 1.0F, out);
  }};
}

OpFaults gathers_row_before(const Backend& right) {
  return {.gather_rows = [&right](Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) {
    std::vector<std::int64_t> before;
    for (const std::int64_t row : indices.span<std::int64_t>()) before.push_back(std::max<std::int64_t>(row - 1, 0));
    right.gather_rows(ctx, x, Tensor(before.data(), DType::kInt64, {indices.dim(0)}), out);
  }};
}

OpFaults gathers_row_of_neighbour(const Backend& right) {
  return {.gather_rows = [&right](Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) {
    const std::span<const std::int64_t> rows = indices.span<std::int64_t>();
    std::vector<std::int64_t> turned(rows.begin(), rows.end());
    if (!turned.empty()) std::rotate(turned.begin(), turned.begin() + 1, turned.end());
    right.gather_rows(ctx, x, Tensor(turned.data(), DType::kInt64, {indices.dim(0)}), out);
  }};
}

OpFaults lora_head_missing(const Backend& right) {
  return {.lora_add = [&right](Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                               const Tensor& out) {
    if (out.dim(1) != 323) right.lora_add(ctx, x, batch, parts, out);  // the vocabulary of every golden
  }};
}

OpFaults lora_rank_cut_at_64(const Backend& right) {
  return {.lora_add = [&right](Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                               const Tensor& out) {
    std::vector<std::vector<LoraPair>> pairs;
    std::vector<LoraGroup> groups(batch.groups.begin(), batch.groups.end());
    for (LoraGroup& group : groups) {
      std::vector<LoraPair>& cut = pairs.emplace_back(group.pairs.begin(), group.pairs.end());
      for (LoraPair& pair : cut) {
        if (!pair.a.defined()) continue;
        const std::int64_t rank = std::min<std::int64_t>(pair.a.dim(0), 64);
        pair.a = pair.a.rows(0, rank);
        pair.b = pair.b.rows(0, rank);
      }
      group.pairs = cut;
    }
    LoraBatch wrong = batch;
    wrong.groups = groups;
    right.lora_add(ctx, x, wrong, parts, out);
  }};
}

OpFaults lora_key_on_value_columns(const Backend& right) {
  return {.lora_add = [&right](Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                               const Tensor& out) {
    std::vector<LoraPart> wrong(parts.begin(), parts.end());
    if (wrong.size() == 3) std::swap(wrong[1].column_begin, wrong[2].column_begin);
    right.lora_add(ctx, x, batch, wrong, out);
  }};
}

OpFaults lora_rows_not_grouped(const Backend& right) {
  return {.lora_add = [&right](Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                               const Tensor& out) {
    std::vector<std::int32_t> rows(batch.host_token_rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
    LoraBatch wrong = batch;
    wrong.host_token_rows = rows;
    wrong.token_rows = Tensor(rows.data(), DType::kInt32, {std::ssize(rows)});
    right.lora_add(ctx, x, wrong, parts, out);
  }};
}

}  // namespace shoal
