// StepPlan and StepResult: what scheduler and engine exchange for one step, by value, so that a plan can be sent to
// other ranks as it is. Both are reused from step to step: clear() keeps the memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/sampling.h"
#include "sampling/sampling_params.h"
#include "sampling/token_score.h"

namespace shoal {

// Where a sequence's query tokens come from.
enum class TokenSource : std::uint8_t {
  kHost,            // StepPlan::input_ids
  kPreviousSample,  // the sample of row `source_row` of the step before (one query token)
};

// One sequence of a step. Those with exactly one query token come first in the plan.
struct PlanSequence {
  std::int32_t state_slot =
      0;  // engine state of this sequence (penalty counts), in [0, max_sequences), its own while it runs
  TokenSource source = TokenSource::kHost;
  std::int32_t source_row = 0;     // with kPreviousSample
  std::int64_t input_begin = 0;    // with kHost: its query tokens start here in StepPlan::input_ids
  std::int32_t query_length = 0;   // >= 1
  std::int32_t cached_length = 0;  // tokens already in the cache = position of the first query token
  std::int64_t block_begin = 0;    // its blocks start here in StepPlan::block_ids
  std::int32_t num_blocks = 0;     // ceil((cached + query) / 16)
  std::int32_t adapter = -1;       // an AdapterHandle's slot, -1 = base model
  std::int32_t logit_rows = 0;     // 0 for an unfinished prompt, 1 for the last token, up to query_length
  SamplingParams sampling = {};    // used for the last logits row
  std::int32_t mask_row = -1;      // of StepPlan::mask_words, for the last logits row; -1: any token may be sampled
  // Tokens that penalties count, given once when a sequence with penalties starts or restarts; else 0 long.
  std::int64_t history_begin = 0;          // in StepPlan::history_ids
  std::int32_t history_length = 0;         // prompt and output so far
  std::int32_t history_prompt_length = 0;  // the first of them that are prompt
  // The first logits rows are not sampled: each scores the token that follows it, which is known.
  std::int32_t scored_rows = 0;
  std::int64_t target_begin = 0;  // those tokens start here in StepPlan::target_ids
  std::int32_t target_top = 0;    // likeliest tokens that come with each
  // Of its sample:
  std::int64_t bias_begin = 0;  // in StepPlan::biases, no id twice
  std::int32_t num_biases = 0;
  ScoreKind score = ScoreKind::kNone;
  std::int32_t num_top = 0;
  // The last logits row is not sampled: what the model would make logits of is wanted itself.
  bool embed = false;
};

// Block `to` becomes a copy of block `from`, in every layer.
struct BlockCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

struct StepPlan {
  std::vector<PlanSequence> sequences;
  std::vector<std::int64_t> input_ids;
  std::vector<std::int32_t> block_ids;
  std::vector<std::int64_t> history_ids;
  std::vector<std::int64_t> target_ids;
  std::vector<LogitBias> biases;
  std::vector<std::int32_t> mask_words;     // [mask rows, ceil(vocab_size / 32)] see SamplingInput::mask
  std::vector<BlockCopy> copy_blocks;       // done before the step: copy on write
  std::vector<std::int32_t> poison_blocks;  // filled with NaN before the step (tests: SHOAL_BLOCK_ORDER=shuffled)
  bool return_logits = false;               // StepResult::logits instead of samples

  void clear() {
    sequences.clear();
    input_ids.clear();
    block_ids.clear();
    history_ids.clear();
    target_ids.clear();
    biases.clear();
    mask_words.clear();
    copy_blocks.clear();
    poison_blocks.clear();
    return_logits = false;
  }
};

// The sample of a sequence that asked for logits. token < 0: its logits held a NaN; only this sequence fails.
struct SampledToken {
  std::int32_t sequence = 0;  // index into StepPlan::sequences
  std::int64_t token = -1;
  float logprob = 0.0F;
  std::int32_t score = -1;  // in StepResult::scores, if the sequence asked for one
};

// Scores of known tokens of one sequence, in order.
struct TargetScores {
  std::int32_t sequence = 0;  // index into StepPlan::sequences
  std::int32_t begin = 0;     // in StepResult::scores
  std::int32_t count = 0;
};

struct StepResult {
  std::vector<SampledToken> samples;  // one a logits row that is sampled, in plan order
  std::vector<TargetScores> targets;  // one a sequence with scored_rows > 0, in plan order
  std::vector<TokenScore> scores;
  std::vector<std::int32_t> embedded;  // of StepPlan::sequences those with `embed` whose prompt is whole, in plan order
  std::vector<float> hidden;           // [embedded, hidden size] the final hidden state of the last token of each
  Tensor logits;                       // float32 [sum of logit_rows, vocab] on the host, only with return_logits

  void clear() {
    samples.clear();
    targets.clear();
    scores.clear();
    embedded.clear();
    hidden.clear();
    logits = Tensor();
  }
};

}  // namespace shoal
