// Ranking: how one token of each logits row stands among the others, and which are the largest. Used by
// sampling/TokenScorer.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace shoal {

struct Context;

// More are not looked for.
inline constexpr std::int64_t kMostTopLogits = 20;

// Of the columns of the logits. A model may have more rows in its vocabulary than its tokenizer has tokens: they take
// their part of the probability, but are no tokens.
struct RankedColumns {
  std::int64_t summed = 0;  // the first so many make up the distribution
  std::int64_t ranked = 0;  // <= summed: ids below this are tokens
};

// Equal logits stand in ascending order of id. A row that holds a NaN has a NaN `log_sum`.
struct RankingOutput {
  Tensor token_logit;  // f32 [rows], NaN where the token is negative
  Tensor rank;         // i32 [rows]: 1 + how many logits are larger than the token's; 0 where it is negative
  Tensor largest;      // f32 [rows]
  Tensor log_sum;     // f32 [rows]: log of the sum of exp(logit - largest), so log-softmax is logit - largest - log_sum
  Tensor top_ids;     // i32 [rows, k], 0 <= k <= kMostTopLogits: the tokens of the largest; -1 past the last
  Tensor top_logits;  // f32 [rows, k]: theirs
};

namespace ops {

// logits f32 [rows, width]; tokens i64 [rows], below columns.ranked. Rows of -inf alone are no use to anybody: their
// results are whatever they are.
void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                 const RankingOutput& out);

}  // namespace ops
}  // namespace shoal
