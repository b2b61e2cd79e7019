// Sampling as one op over per-row parameter arrays. Used by sampling/Sampler.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal {

// A penalty count: the low bits count the token in the output, this bit says that the prompt holds it.
inline constexpr std::int32_t kSeenInPrompt = 1 << 30;

// Rows are logits rows; a sequence may own several. Neutral values switch a step off for a row.
struct SamplingInput {
  Tensor logits;              // float32 [rows, vocab], overwritten (scratch afterwards)
  std::int64_t vocab = 0;     // ids at or past this (padding of the width) are never sampled
  Tensor greedy;              // u8 [rows]: 1 takes the largest logit after penalties and mask, the first index on ties
  Tensor temperature;         // f32 [rows], > 0
  Tensor top_k;               // i32 [rows], 0 = off, larger than the vocabulary = off; ties at the k-th value stay
  Tensor top_p;               // f32 [rows], 1 = off; at least one token stays
  Tensor typical_p;           // f32 [rows], 1 = off
  Tensor min_p;               // f32 [rows], 0 = off
  Tensor repetition_penalty;  // f32 [rows], 1 = off: logit < 0 ? logit * p : logit / p for every seen token
  Tensor frequency_penalty;   // f32 [rows], 0 = off: logit -= f * count in the output
  Tensor presence_penalty;    // f32 [rows], 0 = off: logit -= p if in the output
  Tensor seed;                // i64 [rows]
  Tensor position;            // i32 [rows]: the random stream depends on (seed, position) alone
  Tensor count_slot;          // i32 [rows]: row of token_counts, -1 = no penalties
  Tensor token_counts = {};   // i32 [slots, vocab] or undefined, see kSeenInPrompt
  Tensor mask_slot;           // i32 [rows]: row of mask, -1 = all allowed
  Tensor mask = {};           // i32 [slots, ceil(vocab / 32)] or undefined: bit set = allowed
  // True: afterwards the logits are those that the choice was made among, after penalties and before temperature, and
  // -inf where a mask or a cut dropped them.
  bool leave_kept = false;
};

// A row whose logits hold a NaN, or where nothing may be sampled, gets token -1 and harms no other.
struct SamplingOutput {
  Tensor token;    // i64 [rows]
  Tensor logprob;  // f32 [rows]: log-softmax after all processors, of the chosen token
};

// What is added to one logit.
struct LogitBias {
  std::int32_t id = 0;
  float value = 0.0F;  // -infinity: never sampled
};

namespace ops {

// logits f32 [rows, width]: to each row those of its biases in [begin[row], begin[row + 1]) are added. begin i32
// [rows + 1]; biases are LogitBias as bytes, ids below the width, no id twice in a row.
void add_biases(Context& ctx, const Tensor& begin, const Tensor& biases, const Tensor& logits);

// ++token_counts[count_slot[row]][tokens[row]] wherever neither is negative: tokens i64 [rows], count_slot i32 [rows],
// token_counts i32 [slots, vocab].
void count_sampled(Context& ctx, const Tensor& tokens, const Tensor& count_slot, const Tensor& token_counts);

// ids[row] = sampled[source_rows[row]] wherever that source is not negative: sampled i64 [samples], source_rows i32
// [rows], ids i64 [rows or more]. A sample of -1 becomes 0: the row that follows it is of no use, but must be an id.
void take_sampled(Context& ctx, const Tensor& sampled, const Tensor& source_rows, const Tensor& ids);

// counts i32 [vocab] = those of a sequence that starts: of history i64 [tokens] the first `prompt_length` are marked as
// seen in the prompt, the others counted; ids at or past vocab are left out.
void count_history(Context& ctx, const Tensor& history, std::int64_t prompt_length, const Tensor& counts);

// Order: penalties, mask, temperature, top-k, top-p, typical-p, min-p, choice.
void sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out);

}  // namespace ops
}  // namespace shoal
