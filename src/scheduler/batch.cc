#include "scheduler/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/block_size.h"
#include "core/check.h"
#include "core/result.h"

namespace shoal {
namespace {

constexpr std::uint64_t kShuffleSeed = 0x5eed;

}  // namespace

Batch::Batch(const EngineInfo& info, const SchedulerOptions& options)
    : step_tokens_(std::min(options.max_batch_prefill_tokens, info.max_step_tokens)),
      scored_rows_(info.max_scored_rows),
      max_running_(std::min(info.max_sequences, step_tokens_)),
      now_(options.now),
      allocator_(info.num_blocks, options.block_order, kShuffleSeed) {
  if (max_running_ < 1) {
    throw StartError(
        fmt::format("a step must hold at least one token and one sequence; --max-batch-prefill-tokens is {}",
                    options.max_batch_prefill_tokens));
  }
  if (options.prefix_caching) prefixes_.emplace(allocator_, PrefixTreeOptions{.sliding_window = info.sliding_window});
  const auto max_rows = static_cast<std::size_t>(max_running_);
  for (std::int64_t slot = max_running_ - 1; slot >= 0; --slot) {
    free_state_slots_.push_back(static_cast<std::int32_t>(slot));
  }
  running_.reserve(max_rows);
  planned_.reserve(max_rows);
  chunks_.reserve(max_rows);
  plan_.sequences.reserve(max_rows);
  plan_.input_ids.reserve(static_cast<std::size_t>(step_tokens_));
  plan_.block_ids.reserve(static_cast<std::size_t>(info.num_blocks));
}

const StepPlan& Batch::plan_step(Sequences& waiting) {
  plan_.clear();
  planned_.clear();
  chunks_.clear();
  budget_left_ = step_tokens_;
  scored_rows_left_ = scored_rows_;
  plan_has_decode_rows_ = false;

  const std::int64_t preemptions_before = num_preemptions_;
  choose_decode_rows(waiting);
  // Whoever was just preempted would only be preempted again.
  const bool may_admit = num_preemptions_ == preemptions_before && num_running() < max_running_;
  choose_prompts(waiting, may_admit ? PromptOrder::Listed::kAll : PromptOrder::Listed::kRunning);

  for (const Chunk& chunk : chunks_) {
    if (chunk.query_length == 1) write_row(chunk);
  }
  for (const Chunk& chunk : chunks_) {
    if (chunk.query_length > 1) write_row(chunk);
  }
  CHECK(!plan_.sequences.empty() || (running_.empty() && waiting.empty()));
  if (!plan_.sequences.empty()) allocator_.take_poison(plan_.poison_blocks);
  return plan_;
}

void Batch::choose_decode_rows(Sequences& waiting) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.num_pending() != 1) continue;
    bool has_room = sequence.blocks.grow_to_tokens(sequence.num_tokens());
    while (!has_room && i < running_.size()) {
      preempt_youngest(waiting);
      has_room = i < running_.size() && sequence.blocks.grow_to_tokens(sequence.num_tokens());
    }
    if (!has_room) return;  // it was the youngest itself
    choose(sequence, 1);
    if (sequence.num_generated() > 0) plan_has_decode_rows_ = true;
  }
}

// Half of the tokens are kept for the first of those that run, whatever its length: work always goes on.
void Batch::choose_prompts(Sequences& waiting, PromptOrder::Listed listed) {
  if (budget_left_ == 0) return;
  prompt_order_.list(running_, waiting, listed);
  const std::vector<PromptOrder::Prompt>& prompts = prompt_order_.prompts();
  const auto first = std::find_if(prompts.begin(), prompts.end(), [](const auto& each) { return each.rank == 0; });
  const bool first_runs = first != prompts.end() && !first->waits;
  std::int64_t kept = first_runs ? std::min(first->sequence->num_pending(), (budget_left_ + 1) / 2) : 0;
  bool may_admit = true;
  for (std::size_t i = 0; i < prompts.size() && budget_left_ > 0; ++i) {
    const PromptOrder::Prompt& prompt = prompts[i];
    if (prompt.rank == 0) kept = 0;
    if (budget_left_ == kept) continue;
    if (prompt.waits) {
      if (!may_admit || !prompt_order_.may_start(i)) continue;
      // Nobody overtakes the one that waits for blocks.
      may_admit = admit(*prompt.sequence, waiting);
      if (!may_admit) continue;
      prompt_order_.note_start(i);
    }
    choose(*prompt.sequence, budget_left_ - kept);
  }
}

bool Batch::admit(Sequence& sequence, Sequences& waiting) {
  if (sequence.wants_prompt_scores() && scored_rows_left_ == 0) return false;
  if (num_running() == max_running_ || !take_blocks(sequence)) return false;
  start(sequence);
  const auto found =
      std::find_if(waiting.begin(), waiting.end(), [&sequence](const auto& each) { return each.get() == &sequence; });
  insert_in_order(running_, std::move(*found));
  waiting.erase(found);
  return true;
}

bool Batch::take_blocks(Sequence& sequence) {
  const PrefixTree::Match hit = find_prefix(sequence);
  const std::int64_t needed_blocks = blocks_for_tokens(sequence.num_tokens()) - hit.num_blocks;
  // A block for each running sequence stays free, so that none has to be preempted for the next 16 tokens. What the
  // hit takes can no longer be evicted.
  if (needed_blocks + num_running() > allocator_.num_free() + num_idle_blocks() - hit.num_idle) return false;
  if (prefixes_) {
    sequence.blocks.start(sequence.prefix_key, hit);
    sequence.num_cached = hit.num_blocks * kBlockSize;
    ++prefix_stats_.lookups;
    prefix_stats_.hits += hit.num_blocks > 0 ? 1 : 0;
    prefix_stats_.hit_tokens += sequence.num_cached;
  }
  CHECK(sequence.blocks.grow_to_tokens(sequence.num_tokens()));
  return true;
}

// The last token is always computed: it gives the logits. Its block is computed with it, in a block of the sequence's
// own, so that no shared block is ever written and none has to be copied. That is at most 15 tokens more than a copy
// would leave, in a step that runs anyway.
PrefixTree::Match Batch::find_prefix(const Sequence& sequence) const {
  if (!prefixes_) return {};
  std::int64_t most_tokens = sequence.num_tokens() - 1;
  // What is found has no logits, so it must have been scored before.
  if (sequence.wants_prompt_scores()) {
    most_tokens = std::min<std::int64_t>(most_tokens, std::ssize(sequence.prompt_scores));
  }
  return prefixes_->find(sequence.prefix_key, sequence.tokens, most_tokens / kBlockSize);
}

void Batch::start(Sequence& sequence) {
  sequence.state_slot = free_state_slots_.back();
  free_state_slots_.pop_back();
  if (sequence.started()) return;
  if (prefixes_) sequence.num_prompt_hits = sequence.num_cached;
  sequence.timings.started = now_();
  num_prompt_tokens_ += sequence.num_prompt_tokens;
  ++num_started_;
  const std::int64_t most_tokens = sequence.num_prompt_tokens + sequence.request.max_new_tokens;
  sequence.tokens.reserve(static_cast<std::size_t>(most_tokens));
  sequence.blocks.reserve_tokens(most_tokens);
}

void Batch::preempt_youngest(Sequences& waiting) {
  // One alone always has room: what needs more blocks than there are is refused when it is submitted.
  CHECK_GT(num_running(), 1);
  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();
  give_back(*youngest);
  insert_in_order(waiting, std::move(youngest));
  ++num_preemptions_;
}

void Batch::choose(Sequence& sequence, std::int64_t most_tokens) {
  std::int64_t query_length = std::min(sequence.num_pending(), most_tokens);
  if (sequence.wants_prompt_scores()) {
    query_length = std::min(query_length, scored_rows_left_);
    if (query_length == 0) return;
    scored_rows_left_ -= query_length;
  }
  budget_left_ -= query_length;
  chunks_.push_back({.sequence = &sequence, .query_length = query_length});
}

void Batch::write_mask(const Sequence& sequence, PlanSequence& row) {
  const auto mask = sequence.grammar->mask();
  row.mask_row = static_cast<std::int32_t>(plan_.mask_words.size() / mask.size());
  plan_.mask_words.insert(plan_.mask_words.end(), mask.begin(), mask.end());
}

void Batch::write_row(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const std::int64_t num_blocks = blocks_for_tokens(sequence.num_cached + chunk.query_length);
  PlanSequence row{.state_slot = sequence.state_slot,
                   .source = TokenSource::kHost,
                   .input_begin = static_cast<std::int64_t>(plan_.input_ids.size()),
                   .query_length = static_cast<std::int32_t>(chunk.query_length),
                   .cached_length = static_cast<std::int32_t>(sequence.num_cached),
                   .block_begin = static_cast<std::int64_t>(plan_.block_ids.size()),
                   .num_blocks = static_cast<std::int32_t>(num_blocks),
                   .adapter = sequence.pin.pinned().slot,
                   .logit_rows = chunk.query_length == sequence.num_pending() ? 1 : 0,
                   .sampling = sequence.request.sampling,
                   .embed = sequence.request.embed};
  if (row.sampling.has_penalties() && !sequence.history_given) write_history(sequence, row);
  if (sequence.wants_prompt_scores()) write_scores(sequence, row);
  if (row.logit_rows > row.scored_rows) {
    row.score = sequence.request.scores.answer;
    row.num_top = sequence.request.scores.answer_top;
    write_biases(sequence, row);
    if (sequence.grammar) write_mask(sequence, row);
  }
  const auto first_token = sequence.tokens.begin() + sequence.num_cached;
  plan_.input_ids.insert(plan_.input_ids.end(), first_token, first_token + chunk.query_length);
  const auto block_ids = sequence.blocks.block_ids().first(static_cast<std::size_t>(num_blocks));
  plan_.block_ids.insert(plan_.block_ids.end(), block_ids.begin(), block_ids.end());
  plan_.sequences.push_back(row);
  planned_.push_back(&sequence);
}

void Batch::write_history(Sequence& sequence, PlanSequence& row) {
  row.history_begin = static_cast<std::int64_t>(plan_.history_ids.size());
  row.history_length = static_cast<std::int32_t>(sequence.num_tokens());
  row.history_prompt_length = static_cast<std::int32_t>(sequence.num_prompt_tokens);
  plan_.history_ids.insert(plan_.history_ids.end(), sequence.tokens.begin(), sequence.tokens.end());
  sequence.history_given = true;
}

// Each token of the prompt is scored by the logits of the one before it; those that were, before a preemption, are not
// scored again.
void Batch::write_scores(const Sequence& sequence, PlanSequence& row) {
  const std::int64_t chunk_end = sequence.num_cached + row.query_length;
  const std::int64_t begin = std::max(sequence.num_cached, static_cast<std::int64_t>(sequence.prompt_scores.size()));
  const std::int64_t end = std::min(chunk_end, sequence.num_prompt_tokens - 1);
  if (begin >= end) return;
  row.scored_rows = static_cast<std::int32_t>(end - begin);
  row.logit_rows = static_cast<std::int32_t>(chunk_end - begin);
  row.target_begin = static_cast<std::int64_t>(plan_.target_ids.size());
  row.target_top = sequence.request.scores.prompt_top;
  plan_.target_ids.insert(plan_.target_ids.end(), sequence.tokens.begin() + begin + 1,
                          sequence.tokens.begin() + end + 1);
}

void Batch::write_biases(const Sequence& sequence, PlanSequence& row) {
  std::span<const std::int64_t> banned = sequence.answer.banned_ids();
  // An answer that is whole ends, however short it is.
  if (!banned.empty() && sequence.grammar && !sequence.grammar->allows_others(banned)) banned = {};
  row.bias_begin = static_cast<std::int64_t>(plan_.biases.size());
  for (const LogitBias& bias : sequence.request.logit_bias) {
    if (!std::binary_search(banned.begin(), banned.end(), std::int64_t{bias.id})) plan_.biases.push_back(bias);
  }
  for (const std::int64_t id : banned) {
    plan_.biases.push_back({.id = static_cast<std::int32_t>(id), .value = -std::numeric_limits<float>::infinity()});
  }
  row.num_biases = static_cast<std::int32_t>(std::ssize(plan_.biases) - row.bias_begin);
}

void Batch::step_done() {
  for (std::size_t row = 0; row < planned_.size(); ++row) {
    planned_[row]->num_cached += plan_.sequences[row].query_length;
  }
}

void Batch::share_prefixes() {
  if (!prefixes_) return;
  for (Sequence* sequence : planned_) {
    if (sequence->failed()) continue;
    sequence->blocks.share(std::span(sequence->tokens).first(static_cast<std::size_t>(sequence->num_cached)));
  }
}

PrefixStats Batch::prefix_stats() const {
  PrefixStats stats = prefix_stats_;
  stats.evicted_blocks = prefixes_ ? prefixes_->num_evicted() : 0;
  stats.cached_blocks = num_idle_blocks();
  return stats;
}

void Batch::give_back(Sequence& sequence) {
  if (sequence.state_slot < 0) return;
  free_state_slots_.push_back(std::exchange(sequence.state_slot, -1));
  sequence.blocks.clear();
  sequence.num_cached = 0;
  sequence.history_given = false;
}

}  // namespace shoal
