#include "scheduler/loop.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "core/block_size.h"
#include "core/check.h"

namespace shoal {

Scheduler::Loop::Loop(Engine& engine, Wakeup& wakeup, const Tokenizer* tokenizer, SchedulerOptions options)
    : engine_(engine),
      wakeup_(wakeup),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      info_(engine.info()),
      batch_(info_, options_),
      adapter_queue_(options_.adapter_cycle_time, batch_.max_running()),
      admission_({.max_concurrent_requests = options_.max_concurrent_requests,
                  .max_queue = options_.max_queue,
                  .max_requests_per_tenant = options_.max_requests_per_tenant}),
      room_(batch_.max_running()) {}

std::optional<Error> Scheduler::Loop::check_request(const Request& request) const {
  const auto refuse = [](std::string message) { return Error{ErrorCode::kValidation, std::move(message)}; };
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt_ids.size());
  if (request.load_only) {
    if (request.adapter && prompt_tokens == 0) return std::nullopt;
    return refuse("a load has an adapter and no prompt");
  }
  if (prompt_tokens < 1) return refuse("`inputs` must hold at least one token");
  if (request.embed && request.max_new_tokens != 0) return refuse("an embedding has no new tokens");
  if (!request.embed && request.max_new_tokens < 1) return refuse("`max_new_tokens` must be at least 1");
  if (request.min_new_tokens > request.max_new_tokens) {
    return refuse("`min_tokens` must not be larger than the most new tokens");
  }
  if (tokenizer_ == nullptr && !request.stop.empty()) return refuse("`stop` needs a tokenizer");
  if (std::any_of(request.stop.begin(), request.stop.end(), [](const std::string& text) { return text.empty(); })) {
    return refuse("`stop` must not hold an empty string");
  }
  const std::int64_t limit =
      options_.max_total_tokens > 0 ? std::min(options_.max_total_tokens, info_.max_positions) : info_.max_positions;
  // Neither sum may overflow, whatever number a request holds.
  if (request.max_new_tokens > limit || prompt_tokens + request.max_new_tokens > limit) {
    return refuse(
        fmt::format("`inputs` tokens + `max_new_tokens` must be <= {}. Given: {} `inputs` tokens and {} "
                    "`max_new_tokens`",
                    limit, prompt_tokens, request.max_new_tokens));
  }
  const std::int64_t needed_blocks = blocks_for_tokens(prompt_tokens + request.max_new_tokens);
  if (needed_blocks > info_.num_blocks) {
    return refuse(
        fmt::format("{} `inputs` tokens and {} `max_new_tokens` need {} cache blocks of {} tokens, more than "
                    "the {} that there are",
                    prompt_tokens, request.max_new_tokens, needed_blocks, kBlockSize, info_.num_blocks));
  }
  return std::nullopt;
}

Result<std::shared_ptr<EventStream>> Scheduler::Loop::submit(Request request, std::function<void()> on_event) {
  if (std::optional<Error> error = check_request(request)) return *std::move(error);
  // Shared by scheduler and reader: either may end first.
  auto stream = std::make_shared<EventStream>(std::move(on_event), wakeup_);
  const Tokenizer* tokenizer = request.tokenizer != nullptr ? request.tokenizer.get() : tokenizer_;
  auto sequence = std::make_unique<Sequence>(std::move(request), stream, tokenizer, batch_.make_table());
  if (sequence->request.grammar) {
    Result<GrammarProgress> progress = GrammarProgress::start(*sequence->request.grammar, info_.vocab_size);
    if (!progress.ok()) return progress.error();
    sequence->grammar = std::move(progress).value();
  }
  sequence->timings.submitted = options_.now();
  // Here and not on the loop's thread, because a disk may take its time.
  if (sequence->request.adapter) sequence->adapter_version = engine_.adapter_version(*sequence->request.adapter);
  {
    const std::lock_guard lock(mutex_);
    if (draining_ && !sequence->request.continues) return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    auto refused = admission_.enter(sequence->request.tenant, {.running = stats_.running, .room = room_});
    if (refused) return *std::move(refused);
    ++num_open_;
    sequence->arrival = next_arrival_++;
    inbox_.push_back(std::move(sequence));
  }
  wakeup_.notify();
  return stream;
}

bool Scheduler::Loop::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return all_ended_.wait_for(lock, timeout, [this] { return num_open_ == 0; });
}

SchedulerStats Scheduler::Loop::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.queued = admission_.num_requests() - stats.running;
  stats.rejected = admission_.rejected();
  return stats;
}

bool Scheduler::Loop::making_progress(std::chrono::milliseconds limit) const {
  const std::lock_guard lock(mutex_);
  return stats_.running == 0 || options_.now() - shared_progress_ < limit;
}

std::optional<Scheduler::Loop::Clock::time_point> Scheduler::Loop::deadline() const {
  const bool none_here = adapter_queue_.num_waiting() == 0 && waiting_.empty() && batch_.num_running() == 0;
  if (none_here || options_.request_timeout.count() == 0) return std::nullopt;
  return next_deadline_;
}

bool Scheduler::Loop::turn(News news) {
  end_overdue();
  if (news == News::kRung) {
    take_news();
  } else if (pins_released_) {
    take_ready();
  }
  if (batch_.num_running() == 0) last_progress_ = options_.now();
  if (batch_.step_under_way()) {
    settle();
  } else {
    const StepPlan& plan = plan_step();
    settle();
    if (plan.sequences.empty()) return false;
    step_begin_ = options_.now();
    if (launch(plan, batch_.planned())) batch_.step_launched();
  }
  if (batch_.step_under_way()) {
    launch_next();
    collect_step();
  }
  give_back(batch_.running());
  settle();
  return true;
}

// A step that starts just before an adapter arrives leaves the room that came free empty for its whole length. So it
// waits for those that only have to be copied to the device, for at most a fiftieth of the last step's time: nothing
// where steps are short.
Scheduler::Loop::News Scheduler::Loop::look_for_news() {
  using std::chrono::milliseconds;
  bool rung = wakeup_.take();
  if (pins_released_ && adapter_queue_.num_waiting() > 0) {
    const Clock::time_point latest = Clock::now() + last_step_ / 50;
    while (engine_.adapters_arriving() && Clock::now() + milliseconds(1) <= latest) {
      rung = wakeup_.wait_for(milliseconds(1)) || rung;
    }
    rung = wakeup_.take() || rung;
  }
  return rung ? News::kRung : News::kNone;
}

// What rings: a submit, a cancel, an adapter that arrived, failed or found no room.
void Scheduler::Loop::take_news() {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.swap(inbox_);
  }
  count_served();  // who comes now is compared with what the others were served by now
  for (auto& sequence : arrivals_) {
    next_deadline_ = std::min(next_deadline_, sequence->timings.submitted + options_.request_timeout);
    Sequence& added = adapter_queue_.add(std::move(sequence));
    const std::optional<AdapterKey>& adapter = added.request.adapter;
    if (adapter.has_value() && !added.stream->cancelled()) {
      added.pin = AdapterPin(engine_, *adapter, added.adapter_version, added.place());
    }
  }
  arrivals_.clear();
  for_each_open([this](Sequence& sequence) {
    if (!sequence.stream->cancelled()) return;
    sequence.ended = true;
  });
  collect_ended();
  end_loads();
  take_ready();
}

// The first deadline of those that are here is looked for only when one has passed, be it of a request that is gone.
void Scheduler::Loop::end_overdue() {
  const Clock::time_point now = options_.now();
  if (options_.request_timeout.count() == 0 || now < next_deadline_) return;
  next_deadline_ = Clock::time_point::max();
  for_each_open([&](Sequence& sequence) {
    const Clock::time_point deadline = sequence.timings.submitted + options_.request_timeout;
    if (now < deadline) {
      next_deadline_ = std::min(next_deadline_, deadline);
      return;
    }
    ++(sequence.started() ? counters_.timed_out_running : counters_.timed_out_queued);
    const double limit_s = std::chrono::duration<double>(options_.request_timeout).count();
    const char* what = sequence.started() ? "the answer was not whole after" : "it was not started within";
    fail(sequence, {ErrorCode::kTimeout, fmt::format("{} {} s", what, limit_s)});
  });
  collect_ended();
}

// Those whose adapter failed, and those who wanted no more than that it is in memory.
void Scheduler::Loop::end_loads() {
  adapter_queue_.for_each([this](Sequence& sequence) {
    const TierState state = sequence.pin.state();
    if (state == TierState::kFailed) {
      fail(sequence, sequence.pin.error());
    } else if (sequence.request.load_only && state != TierState::kMoving) {
      finish(sequence, FinishReason::kLength);
    }
  });
  collect_ended();
}

void Scheduler::Loop::count_served() {
  adapter_queue_.count_served(waiting_);
  adapter_queue_.count_served(batch_.running());
}

void Scheduler::Loop::take_ready() {
  pins_released_ = false;
  count_served();
  const std::size_t waiting_before = waiting_.size();
  adapter_queue_.take_ready(options_.now(), batch_.max_running() - batch_.num_running(), waiting_);
  room_changed_ = room_changed_ || waiting_.size() != waiting_before;
}

const StepPlan& Scheduler::Loop::plan_step() {
  room_changed_ = false;
  const std::int64_t running_before = batch_.num_running();
  const std::int64_t started_before = batch_.num_started();
  const StepPlan& plan = batch_.plan_step(waiting_);
  const std::int64_t started = batch_.num_started() - started_before;
  if (started > 0) {
    counters_.next_size.add(static_cast<double>(started), kBatchSizeBounds);
    if (running_before > 0) ++counters_.joined_batches;
  }
  return plan;
}

void Scheduler::Loop::fail(Sequence& sequence, Error error) {
  sequence.ended = true;
  sequence.last_event = std::move(error);
}

void Scheduler::Loop::for_each_open(const std::function<void(Sequence&)>& visit) {
  adapter_queue_.for_each(visit);
  for (const Sequences* sequences : {&waiting_, &batch_.running()}) {
    for (const auto& sequence : *sequences) {
      if (!sequence->ended) visit(*sequence);
    }
  }
}

void Scheduler::Loop::collect_ended() {
  adapter_queue_.take_ended(left_queue_);
  for (Sequences* sequences : {&left_queue_, &waiting_, &batch_.running()}) give_back(*sequences);
}

void Scheduler::Loop::count_end(const Sequence& sequence) {
  const bool has_reader = sequence.last_event.has_value();
  ++(sequence.failed() ? counters_.failed : has_reader ? counters_.finished : counters_.cancelled);
}

// All that those hold that ended, once.
void Scheduler::Loop::give_back(Sequences& sequences) {
  for (auto& sequence : sequences) {
    if (!sequence->ended || sequence->num_steps_under_way > 0) continue;
    room_changed_ = true;
    count_end(*sequence);
    batch_.give_back(*sequence);
    sequence->pin.release();
    adapter_queue_.close(*sequence);
    pins_released_ = true;
    ended_.push_back(std::move(sequence));
  }
  std::erase(sequences, nullptr);
}

// Publishes the state, and only then sends last events: whoever reads one finds everything given back.
void Scheduler::Loop::settle() {
  counters_.running = batch_.num_running();
  counters_.total_blocks = batch_.num_blocks();
  counters_.used_blocks = batch_.num_used_blocks();
  counters_.prefix = batch_.prefix_stats();
  counters_.batch_size = static_cast<std::int64_t>(batch_.planned().size());
  counters_.prompt_tokens = batch_.num_prompt_tokens();
  counters_.preemptions = batch_.num_preemptions();
  {
    const std::lock_guard lock(mutex_);
    stats_ = counters_;
    shared_progress_ = last_progress_;
    const bool none_waits = adapter_queue_.num_waiting() == 0 && waiting_.empty();
    room_ = none_waits ? batch_.max_running() - batch_.num_running() : 0;
    for (const auto& sequence : ended_) admission_.leave(sequence->request.tenant);
  }
  if (ended_.empty()) return;
  for (const auto& sequence : ended_) {
    if (sequence->last_event.has_value()) sequence->stream->push(*std::move(sequence->last_event));
  }
  {
    const std::lock_guard lock(mutex_);
    num_open_ -= static_cast<std::int64_t>(ended_.size());
  }
  all_ended_.notify_all();
  ended_.clear();
}

void Scheduler::Loop::end_all() {
  if (batch_.step_under_way()) collect_step();
  take_news();
  for_each_open([this](Sequence& sequence) {
    fail(sequence, sequence.started() ? Error{ErrorCode::kIncomplete, "the server stopped before the answer was whole"}
                                      : Error{ErrorCode::kUnavailable, "the server is shutting down"});
  });
  collect_ended();
  settle();
}

}  // namespace shoal
