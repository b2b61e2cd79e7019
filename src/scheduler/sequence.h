// Sequence: one request while the scheduler has it, with all that it holds and must give back. Used by the scheduler's
// loop and batch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cache/block_table.h"
#include "engine/engine.h"
#include "scheduler/answer_text.h"
#include "scheduler/grammar_progress.h"
#include "scheduler/request.h"

namespace shoal {

// A request's claim on its adapter; given back exactly once, however the request ends.
class AdapterPin {
 public:
  AdapterPin() = default;
  AdapterPin(Engine& engine, const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place)
      : engine_(&engine), ticket_(engine.want_adapter(key, version, place)) {}
  ~AdapterPin() { release(); }
  AdapterPin(AdapterPin&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), ticket_(other.ticket_), pinned_(other.pinned_) {}
  AdapterPin& operator=(AdapterPin&& other) noexcept {
    if (this != &other) {
      release();
      engine_ = std::exchange(other.engine_, nullptr);
      ticket_ = other.ticket_;
      pinned_ = other.pinned_;
    }
    return *this;
  }
  AdapterPin(const AdapterPin&) = delete;
  AdapterPin& operator=(const AdapterPin&) = delete;

  void release() {
    if (engine_ != nullptr) std::exchange(engine_, nullptr)->release_adapter(ticket_);
    pinned_ = PinnedAdapter();
  }
  // The base model is always there.
  TierState state() const { return engine_ == nullptr ? TierState::kInUse : engine_->adapter_state(ticket_); }
  Error error() const { return engine_->adapter_error(ticket_); }  // with kFailed
  // False unless it is on the device. From then on it stays there.
  bool pin() {
    if (engine_ == nullptr) return true;
    const std::optional<PinnedAdapter> pinned = engine_->pin_adapter(ticket_);
    if (pinned) pinned_ = *pinned;
    return pinned.has_value();
  }
  const PinnedAdapter& pinned() const { return pinned_; }  // the base model until pin()
  // Wants the same adapter at another place; before pin().
  void move_to(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) {
    if (engine_ != nullptr) *this = AdapterPin(*engine_, key, version, place);
  }

 private:
  Engine* engine_ = nullptr;
  AdapterTicket ticket_;
  PinnedAdapter pinned_;
};

// Tells adapters apart, "" for the base model.
inline std::string share_name_of(const std::optional<AdapterKey>& adapter) {
  return adapter ? name_of(*adapter) : std::string();
}

struct Sequence {
  Sequence(Request request_in, std::shared_ptr<EventStream> stream_in, const Tokenizer* tokenizer,
           BlockTable empty_table)
      : request(std::move(request_in)),
        stream(std::move(stream_in)),
        answer(request, tokenizer),
        num_prompt_tokens(static_cast<std::int64_t>(request.prompt_ids.size())),
        tokens(std::exchange(request.prompt_ids, {})),
        prefix_key{.adapter = {}, .salt = request.cache_salt},
        blocks(std::move(empty_table)),
        share_name(share_name_of(request.adapter)),
        priority(request.priority) {}

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  // Tokens that are not in the cache yet: one for a row that decodes, more for a prompt (or a recomputed text).
  std::int64_t num_pending() const { return num_tokens() - num_cached; }
  QueuePlace place() const { return {.priority = priority, .round = round, .arrival = arrival}; }
  // The prompt is scored before the first token is sampled.
  bool wants_prompt_scores() const { return request.scores.prompt && num_generated() == 0; }
  bool started() const { return timings.started != std::chrono::steady_clock::time_point(); }
  std::int64_t num_generated() const { return num_tokens() - num_prompt_tokens; }
  bool failed() const { return last_event.has_value() && std::holds_alternative<Error>(*last_event); }

  Request request;  // its prompt has moved to `tokens`
  const std::shared_ptr<EventStream> stream;
  AnswerText answer;
  std::optional<GrammarProgress> grammar;  // none: the request has no grammar
  std::int64_t arrival = 0;                // order of submission
  RequestTimings timings;

  std::int64_t num_prompt_tokens;
  std::vector<std::int64_t> tokens;  // the prompt, then what was generated
  AdapterVersion adapter_version;    // when it was submitted
  AdapterPin pin;
  std::optional<std::chrono::steady_clock::time_point> no_room_since;  // for its adapter
  PrefixKey prefix_key;                                                // its adapter is set when that is ready
  std::optional<std::int64_t> num_prompt_hits;  // prompt tokens found in the prefix cache at the first start

  // While it runs:
  std::int64_t num_cached = 0;  // leading tokens whose keys and values lie in `blocks`
  BlockTable blocks;
  std::int32_t state_slot = -1;
  bool history_given = false;  // the engine has the tokens that penalties count
  // Steps that hold a row of it and are not collected. Until they are, it gives nothing back, even if it has ended.
  std::int32_t num_steps_under_way = 0;

  std::vector<TokenScore> prompt_scores;  // so far: of the tokens from the second on; they leave with the first token

  // Its part in the fair order:
  const std::string share_name;  // of its adapter, "" for the base model
  std::int32_t priority;         // the request's, or a higher one that passed it too often
  std::int64_t round = 0;        // see FairLevel
  std::int32_t fair_level = 0;   // the priority whose shares it counts for
  std::int64_t num_charged = 0;  // generated tokens that were counted
  bool start_noted = false;
  bool taken = false;                // out of the queue, ready or running
  std::int64_t times_passed = 0;     // by higher priorities, once it was ready to run
  bool came_alone = false;           // none of its tenant waited for its start: see PromptOrder
  bool in_saved_round = false;       // an earlier one than of those that had started when it came
  std::int64_t times_overtaken = 0;  // see PromptOrder

  // Once it ended:
  bool ended = false;
  std::optional<Event> last_event;  // none if the reader is gone
};

// Oldest first: see runs_before.
using Sequences = std::vector<std::unique_ptr<Sequence>>;

// By place. The first of all is never preempted, so work always goes on.
inline bool runs_before(const Sequence& a, const Sequence& b) { return a.place() < b.place(); }

// Puts `sequence` at its place in the order.
void insert_in_order(Sequences& sequences, std::unique_ptr<Sequence> sequence);

}  // namespace shoal
