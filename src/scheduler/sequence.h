// Sequence: one request while the scheduler has it, with all that it holds and must give back. Used by the scheduler's
// loop and batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "cache/block_table.h"
#include "engine/engine.h"
#include "scheduler/answer_text.h"
#include "scheduler/request.h"

namespace shoal {

// Keeps an adapter in the engine; given back exactly once, however the request ends.
class AdapterPin {
 public:
  AdapterPin() = default;
  AdapterPin(Engine& engine, const AdapterKey& key) : engine_(&engine), handle_(engine.acquire_adapter(key)) {}
  ~AdapterPin() { release(); }
  AdapterPin(AdapterPin&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), handle_(other.handle_) {}
  AdapterPin& operator=(AdapterPin&& other) noexcept {
    if (this != &other) {
      release();
      engine_ = std::exchange(other.engine_, nullptr);
      handle_ = other.handle_;
    }
    return *this;
  }
  AdapterPin(const AdapterPin&) = delete;
  AdapterPin& operator=(const AdapterPin&) = delete;

  void release() {
    if (engine_ != nullptr) std::exchange(engine_, nullptr)->release_adapter(handle_);
    handle_ = AdapterHandle();
  }
  AdapterHandle handle() const { return handle_; }  // the base model's if none is pinned
  AdapterStatus status() const {
    return engine_ == nullptr ? AdapterStatus{.state = AdapterState::kReady, .error = std::nullopt}
                              : engine_->adapter_status(handle_);
  }

 private:
  Engine* engine_ = nullptr;
  AdapterHandle handle_;
};

struct Sequence {
  Sequence(Request request_in, std::shared_ptr<EventStream> stream_in, const Tokenizer* tokenizer,
           BlockTable empty_table)
      : request(std::move(request_in)),
        stream(std::move(stream_in)),
        answer(request, tokenizer),
        num_prompt_tokens(static_cast<std::int64_t>(request.prompt_ids.size())),
        tokens(std::exchange(request.prompt_ids, {})),
        prefix_key{.adapter = {}, .salt = request.cache_salt},
        blocks(std::move(empty_table)) {}

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  // Tokens that are not in the cache yet: one for a row that decodes, more for a prompt (or a recomputed text).
  std::int64_t num_pending() const { return num_tokens() - num_cached; }
  bool started() const { return timings.started != std::chrono::steady_clock::time_point(); }
  std::int64_t num_generated() const { return num_tokens() - num_prompt_tokens; }
  bool failed() const { return last_event.has_value() && std::holds_alternative<Error>(*last_event); }

  Request request;  // its prompt has moved to `tokens`
  const std::shared_ptr<EventStream> stream;
  AnswerText answer;
  std::int64_t arrival = 0;  // order of submission
  RequestTimings timings;

  std::int64_t num_prompt_tokens;
  std::vector<std::int64_t> tokens;  // the prompt, then what was generated
  AdapterPin pin;
  PrefixKey prefix_key;                         // its adapter is set when that is ready
  std::optional<std::int64_t> num_prompt_hits;  // prompt tokens found in the prefix cache at the first start

  // While it runs:
  std::int64_t num_cached = 0;  // leading tokens whose keys and values lie in `blocks`
  BlockTable blocks;
  std::int32_t state_slot = -1;
  bool history_given = false;  // the engine has the tokens that penalties count

  // Once it ended:
  bool ended = false;
  std::optional<Event> last_event;  // none if the reader is gone
};

// Oldest first: see runs_before.
using Sequences = std::vector<std::unique_ptr<Sequence>>;

// Higher priority first, then the order of submission. The first of all is never preempted, so work always goes on.
inline bool runs_before(const Sequence& a, const Sequence& b) {
  return a.request.priority != b.request.priority ? a.request.priority > b.request.priority : a.arrival < b.arrival;
}

// Puts `sequence` at its place in the order.
void insert_in_order(Sequences& sequences, std::unique_ptr<Sequence> sequence);

}  // namespace shoal
