// Request and its EventStream: what server/ submits and reads back. Used by server/, cli/ generate and the scheduler.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/adapter_key.h"
#include "core/result.h"
#include "core/wakeup.h"
#include "sampling/sampling_params.h"
#include "sampling/token_score.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace shoal {

// What happens to a matched stop string: LoRAX's native routes keep it in the text, OpenAI's cut it.
enum class StopText : std::uint8_t { kKeep, kCut };

// Which scores come with the tokens. A number of likeliest tokens stands beside each.
struct ScoreOptions {
  ScoreKind answer = ScoreKind::kNone;  // of the generated tokens
  std::int32_t answer_top = 0;
  bool prompt = false;  // of the prompt's tokens, but for the first, by the model's own logits
  std::int32_t prompt_top = 0;
};

// Checked by server/ before it is submitted: lengths, ranges, tokenization.
struct Request {
  std::vector<std::int64_t> prompt_ids;  // at least one, but with `load_only`
  std::int64_t max_new_tokens = 0;       // >= 1, 0 with `embed`; prompt + new <= the served length
  SamplingParams sampling;
  std::optional<AdapterKey> adapter;              // none: the base model
  std::vector<std::string> stop;                  // none empty
  std::vector<std::int64_t> stop_token_ids = {};  // sorted; each ends the answer, whatever ignore_eos says
  StopText stop_text = StopText::kKeep;
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // in generated_text and delta
  std::int32_t priority = 0;        // higher goes first
  std::string tenant = {};          // tenants get fair shares of what is served
  std::int64_t min_new_tokens = 0;  // before these neither end tokens are sampled nor do stop strings end the text
  std::vector<LogitBias> logit_bias = {};  // added to the logits before all else; no id twice
  ScoreOptions scores = {};
  std::string cache_salt = {};  // requests of different salts share no cached prefix
  // What the answer must look like; null: anything. Shared with other requests and whoever keeps it for the next one.
  std::shared_ptr<const Grammar> grammar = {};
  bool embed = false;  // wants FinishEvent::hidden and no answer
  // Makes the answer's text; null: the scheduler's own. Shared with other requests for the adapter that brought it.
  std::shared_ptr<const Tokenizer> tokenizer = {};
  // Wants its adapter in memory, read and checked, and nothing else: it has no prompt, runs in no step, and ends once
  // the adapter is there.
  bool load_only = false;
  // A part of an answer of which others were taken: a server that shuts down takes it too.
  bool continues = false;
};

enum class FinishReason : std::uint8_t { kLength, kEndOfSequence, kStopSequence };

// One generated token.
struct TokenEvent {
  std::int64_t id = 0;
  std::string text;   // this token's text with special tokens kept; "" while a UTF-8 sequence is incomplete
  std::string delta;  // newly final part of the answer: special tokens dropped as asked, stop strings held back or cut
  float logprob = 0.0F;
  bool special = false;
  std::optional<TokenScore> score = {};  // if the request asked for it
  std::vector<TokenScore> prompt_scores =
      {};             // with the first token, if asked for: of the prompt's tokens from the second on
  bool last = false;  // the FinishEvent follows at once: LoRAX's last stream event carries token and summary together
};

struct RequestTimings {
  std::chrono::steady_clock::time_point submitted, started, first_token, finished;
};

// The last event of an answer. Its token was sent before, as a TokenEvent.
struct FinishEvent {
  FinishReason reason = FinishReason::kLength;
  std::string generated_text;  // whole; equals the deltas joined
  std::string tail;            // text that was held back and belongs to the answer after all: the last delta
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::optional<std::int64_t> cached_tokens;  // of the prompt, found in the prefix cache; none: it is off
  RequestTimings timings;
  std::vector<float> hidden = {};  // [hidden size] the last token's final hidden state, if that was wanted
};

// TokenEvent*, then FinishEvent or Error; nothing after either.
using Event = std::variant<TokenEvent, FinishEvent, Error>;

// The road back to a connection: pushed by the scheduler thread, popped by the server. Shared by exactly these two,
// since either may end first.
class EventStream {
 public:
  // `on_event` is called after each push, from the scheduler thread; it must be quick and must not throw (the server
  // posts to its own loop). `scheduler_wakeup` outlives the stream.
  EventStream(std::function<void()> on_event, Wakeup& scheduler_wakeup);

  std::optional<Event> pop();  // the oldest event, if any; any thread
  void cancel();               // the reader is gone: blocks, pins and permits go back; idempotent, any thread

  // --- the scheduler's side ---
  void push(Event event);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::function<void()> on_event_;
  Wakeup& scheduler_wakeup_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::deque<Event> events_;  // guarded by mutex_
};

}  // namespace shoal
