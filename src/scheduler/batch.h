// Batch: the running sequences and what they share (cache blocks, state slots, the step's token budget). It decides
// what a step runs. Used by the scheduler's loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/block_table.h"
#include "cache/prefix_tree.h"
#include "engine/engine.h"
#include "engine/step_plan.h"
#include "scheduler/prompt_order.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace shoal {

class Batch {
 public:
  // Throws StartError if the options leave no room for a single token.
  Batch(const EngineInfo& info, const SchedulerOptions& options);

  // Chooses the next step's rows: one token of each sequence whose text is cached but for the last token, then prompts
  // while the budget lasts: of those that run, in chunks, and of `waiting` (their adapters ready), see PromptOrder.
  // When a row finds no block, the last by place - the youngest of the lowest priority - goes back to `waiting` to be
  // computed again later.
  // Empty only when nothing runs and nothing waits. Allocates nothing once the largest step was seen.
  const StepPlan& plan_step(Sequences& waiting);
  // The sequences of the plan's rows.
  std::span<Sequence* const> planned() const { return step_.rows; }
  // Whoever waited when the step was planned found no place or no blocks: only an end of another can help.
  bool is_full() const { return is_full_; }
  std::int64_t num_planned_samples() const;  // rows that give a token or a hidden state
  bool plan_has_decode_rows() const { return step_.has_decode_rows; }
  // The planned step was started.
  void step_launched();
  bool step_under_way() const { return step_.under_way; }
  // The step behind the one under way, as far as it is known before that one is collected: the next token of each of
  // its rows that does not end there by its length. The row of one that ends there nevertheless is of no use. Null
  // where more must be known, or may be done, first; `others_wait` for room, which one that ends would give them.
  const StepPlan* plan_next(bool others_wait);
  std::span<Sequence* const> planned_next() const { return next_.rows; }
  void next_launched();
  // The older step under way ended: its query tokens are in the cache, if it did not fail.
  void step_collected(bool succeeded);
  // With a prefix cache: others may share what the step completed, but for rows that failed. After step_collected,
  // before anything is given back.
  void share_prefixes();
  // All of the collected step was used: the one behind it, if there is one, becomes the planned one.
  void advance();

  // Frees what a sequence holds of the batch; it runs no more.
  void give_back(Sequence& sequence);

  Sequences& running() { return running_; }
  const Sequences& running() const { return running_; }
  // The empty table of a new sequence; any thread.
  BlockTable make_table() { return BlockTable(allocator_, prefixes_ ? &*prefixes_ : nullptr); }
  std::int64_t num_blocks() const { return allocator_.num_blocks(); }
  std::int64_t num_used_blocks() const { return allocator_.num_used() - num_idle_blocks(); }  // that sequences hold
  PrefixStats prefix_stats() const;
  std::int64_t max_running() const { return max_running_; }
  std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t num_preemptions() const { return num_preemptions_; }
  std::int64_t num_prompt_tokens() const { return num_prompt_tokens_; }  // of all requests started so far
  std::int64_t num_started() const { return num_started_; }              // requests, so far

 private:
  struct Step {
    StepPlan plan;
    std::vector<Sequence*> rows;
    bool has_decode_rows = false;
    bool under_way = false;

    void clear();
  };
  struct Chunk {
    Sequence* sequence = nullptr;
    std::int64_t query_length = 0;
  };

  void choose_decode_rows(Sequences& waiting);
  void choose_prompts(Sequences& waiting, PromptOrder::Listed listed);
  bool admit(Sequence& sequence, Sequences& waiting);
  bool take_blocks(Sequence& sequence);
  PrefixTree::Match find_prefix(const Sequence& sequence) const;
  std::int64_t num_idle_blocks() const { return prefixes_ ? prefixes_->num_idle() : 0; }
  void start(Sequence& sequence);
  void preempt_youngest(Sequences& waiting);
  void choose(Sequence& sequence, std::int64_t most_tokens);
  void launched(Step& step);
  static bool can_follow(const Sequence& sequence, const PlanSequence& row);
  void write_row(const Chunk& chunk);

  std::int64_t step_tokens_;  // query tokens of one step
  std::int64_t scored_rows_;  // known tokens of one step that may be scored
  std::int64_t max_running_;  // so many that each can have a token of a step
  SchedulerClock now_;
  BlockAllocator allocator_;
  std::optional<PrefixTree> prefixes_;  // none: prefix caching is off
  PrefixStats prefix_stats_;
  std::vector<std::int32_t> free_state_slots_;
  Sequences running_;  // destroyed before the allocator

  Step step_, next_;
  PromptOrder prompt_order_;
  std::vector<Chunk> chunks_;     // chosen for the step, in order of choice
  std::int64_t budget_left_ = 0;  // query tokens still free in the step being planned
  std::int64_t scored_rows_left_ = 0;
  bool is_full_ = false;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_prompt_tokens_ = 0;
  std::int64_t num_started_ = 0;
};

}  // namespace shoal
