#include "scheduler/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/block_size.h"
#include "core/check.h"
#include "core/result.h"
#include "scheduler/plan_rows.h"

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
  chunks_.reserve(max_rows);
  step_.plan.input_ids.reserve(static_cast<std::size_t>(step_tokens_));
  for (Step* step : {&step_, &next_}) {
    step->rows.reserve(max_rows);
    step->plan.sequences.reserve(max_rows);
    step->plan.block_ids.reserve(static_cast<std::size_t>(info.num_blocks));
  }
}

void Batch::Step::clear() {
  plan.clear();
  rows.clear();
  has_decode_rows = false;
}

const StepPlan& Batch::plan_step(Sequences& waiting) {
  CHECK(!step_.under_way);
  step_.clear();
  chunks_.clear();
  budget_left_ = step_tokens_;
  scored_rows_left_ = scored_rows_;

  const std::int64_t preemptions_before = num_preemptions_;
  choose_decode_rows(waiting);
  // Whoever was just preempted would only be preempted again.
  is_full_ = num_preemptions_ != preemptions_before || num_running() == max_running_;
  const bool may_admit = !is_full_;
  choose_prompts(waiting, may_admit ? PromptOrder::Listed::kAll : PromptOrder::Listed::kRunning);

  for (const Chunk& chunk : chunks_) {
    if (chunk.query_length == 1) write_row(chunk);
  }
  for (const Chunk& chunk : chunks_) {
    if (chunk.query_length > 1) write_row(chunk);
  }
  CHECK(!step_.plan.sequences.empty() || (running_.empty() && waiting.empty()));
  if (!step_.plan.sequences.empty()) allocator_.take_poison(step_.plan.poison_blocks);
  return step_.plan;
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
    if (sequence.num_generated() > 0) step_.has_decode_rows = true;
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
  is_full_ = num_running() == max_running_ || !take_blocks(sequence);
  if (is_full_) return false;
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

// All that the next row needs of this one is its sample.
bool Batch::can_follow(const Sequence& sequence, const PlanSequence& row) {
  const bool samples_alone = row.logit_rows == 1 && row.scored_rows == 0 && !row.embed;
  return samples_alone && !sequence.grammar && sequence.answer.banned_ids().empty();
}

const StepPlan* Batch::plan_next(bool others_wait) {
  CHECK(step_.under_way);
  if (step_.rows.size() != running_.size()) return nullptr;  // some prompt goes on
  next_.clear();
  for (std::size_t i = 0; i < step_.rows.size(); ++i) {
    Sequence& sequence = *step_.rows[i];
    const PlanSequence& row = step_.plan.sequences[i];
    const bool ends = sequence.ended || sequence.num_generated() + 1 >= sequence.request.max_new_tokens;
    if ((ends && others_wait) || !can_follow(sequence, row)) return nullptr;
    if (ends) continue;
    if (!sequence.blocks.grow_to_tokens(row.cached_length + row.query_length + 1)) return nullptr;
    plan_rows::add_next(sequence, row, static_cast<std::int32_t>(i), next_.plan);
    next_.rows.push_back(&sequence);
  }
  if (next_.rows.empty()) return nullptr;
  next_.has_decode_rows = true;
  allocator_.take_poison(next_.plan.poison_blocks);
  return &next_.plan;
}

void Batch::write_row(const Chunk& chunk) {
  plan_rows::add(*chunk.sequence, chunk.query_length, step_.plan);
  step_.rows.push_back(chunk.sequence);
}

void Batch::launched(Step& step) {
  step.under_way = true;
  for (Sequence* sequence : step.rows) ++sequence->num_steps_under_way;
}

void Batch::step_launched() { launched(step_); }

void Batch::next_launched() { launched(next_); }

void Batch::step_collected(bool succeeded) {
  CHECK(step_.under_way);
  step_.under_way = false;
  for (std::size_t row = 0; row < step_.rows.size(); ++row) {
    --step_.rows[row]->num_steps_under_way;
    if (succeeded) step_.rows[row]->num_cached += step_.plan.sequences[row].query_length;
  }
}

// A row of no use has cached a token that its sequence does not know.
void Batch::share_prefixes() {
  if (!prefixes_) return;
  for (Sequence* sequence : step_.rows) {
    if (sequence->failed() || sequence->num_cached > sequence->num_tokens()) continue;
    sequence->blocks.share(std::span(sequence->tokens).first(static_cast<std::size_t>(sequence->num_cached)));
  }
}

void Batch::advance() {
  if (next_.under_way) std::swap(step_, next_);
}

std::int64_t Batch::num_planned_samples() const {
  const auto& rows = step_.plan.sequences;
  return std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.logit_rows > row.scored_rows; });
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
