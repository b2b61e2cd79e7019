// The part of the loop that runs steps: it starts them, waits for them and hands out what came of them.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "core/check.h"
#include "scheduler/loop.h"

namespace shoal {

bool Scheduler::Loop::launch(const StepPlan& plan, std::span<Sequence* const> rows) {
  try {
    engine_.launch(plan);
    return true;
  } catch (const std::exception& error) {
    fail_step(rows, error);
    return false;
  }
}

// Whoever waits for room goes before a step that is planned without him.
void Scheduler::Loop::launch_next() {
  if (!info_.runs_beside_host) return;
  const bool others_wait = !waiting_.empty() || adapter_queue_.num_waiting() > 0;
  if (!waiting_.empty() && (room_changed_ || !batch_.is_full())) return;
  const StepPlan* next = batch_.plan_next(others_wait);
  if (next == nullptr || !launch(*next, batch_.planned_next())) return;
  batch_.next_launched();
  ++counters_.steps_ahead;
}

void Scheduler::Loop::collect_step() {
  const StepResult* result = nullptr;
  try {
    result = &engine_.collect();
  } catch (const std::exception& error) {
    fail_step(batch_.planned(), error);
  }
  const Clock::time_point now = options_.now();
  batch_.step_collected(result != nullptr);
  if (result != nullptr) {
    StepStats& steps = batch_.plan_has_decode_rows() ? counters_.decode : counters_.prefill;
    ++steps.succeeded;
    last_step_ = now - step_begin_;
    steps.seconds.add(std::chrono::duration<double>(last_step_).count(), kDurationBounds);
    apply(*result);
  }
  batch_.advance();
  step_begin_ = now;
  last_progress_ = options_.now();
}

void Scheduler::Loop::fail_step(std::span<Sequence* const> rows, const std::exception& error) {
  ++(batch_.plan_has_decode_rows() ? counters_.decode : counters_.prefill).failed;
  spdlog::error("a step of {} sequences failed: {}", rows.size(), error.what());
  for (Sequence* sequence : rows) {
    if (!sequence->ended) fail(*sequence, {ErrorCode::kGeneration, error.what()});
  }
  last_progress_ = options_.now();
}

void Scheduler::Loop::apply(const StepResult& result) {
  ++counters_.steps;
  if (batch_.plan_has_decode_rows()) ++counters_.decode_steps;
  take_prompt_scores(result);
  CHECK_EQ(std::ssize(result.samples) + std::ssize(result.embedded), batch_.num_planned_samples());
  take_hidden(result);
  for (const SampledToken& sample : result.samples) {
    Sequence& sequence = *batch_.planned()[static_cast<std::size_t>(sample.sequence)];
    if (sequence.ended) continue;  // since the step was started
    if (sample.token < 0) {
      fail(sequence, {ErrorCode::kGeneration, "the model's logits are not a number"});
    } else {
      accept(sequence, sample, result);
    }
  }
  find_masks();
  batch_.share_prefixes();
}

void Scheduler::Loop::take_prompt_scores(const StepResult& result) {
  for (const TargetScores& targets : result.targets) {
    Sequence& sequence = *batch_.planned()[static_cast<std::size_t>(targets.sequence)];
    const auto begin = result.scores.begin() + targets.begin;
    sequence.prompt_scores.insert(sequence.prompt_scores.end(), begin, begin + targets.count);
  }
}

void Scheduler::Loop::take_hidden(const StepResult& result) {
  if (result.embedded.empty()) return;
  const std::size_t size = result.hidden.size() / result.embedded.size();
  for (std::size_t i = 0; i < result.embedded.size(); ++i) {
    Sequence& sequence = *batch_.planned()[static_cast<std::size_t>(result.embedded[i])];
    const std::span<const float> hidden = std::span(result.hidden).subspan(i * size, size);
    if (std::all_of(hidden.begin(), hidden.end(), [](float value) { return std::isfinite(value); })) {
      sequence.timings.first_token = options_.now();
      finish(sequence, FinishReason::kLength).hidden.assign(hidden.begin(), hidden.end());
    } else {
      fail(sequence, {ErrorCode::kGeneration, "the model's hidden states are not finite"});
    }
  }
}

// After the tokens of all rows are on their way to their readers; the rows under grammars share some threads.
void Scheduler::Loop::find_masks() {
  constexpr int kMaxThreads = 4;
  masked_.clear();
  for (Sequence* sequence : batch_.planned()) {
    if (sequence->grammar && !sequence->ended && sequence->num_pending() == 1) masked_.push_back(sequence);
  }
  if (masked_.size() > 1 && !mask_threads_) {
    const auto processors = static_cast<int>(std::thread::hardware_concurrency());
    mask_threads_.emplace(std::clamp(processors, 1, kMaxThreads));
  }
  const auto find = [this](std::int64_t index) { masked_[static_cast<std::size_t>(index)]->grammar->find_mask(); };
  const Clock::time_point begin = Clock::now();
  if (masked_.size() == 1) find(0);
  if (masked_.size() > 1) mask_threads_->parallel_for(std::ssize(masked_), find);
  if (!masked_.empty()) counters_.mask_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  counters_.masks += std::ssize(masked_);
  for (Sequence* sequence : masked_) {
    if (const auto& fault = sequence->grammar->fault()) fail(*sequence, *fault);
  }
}

void Scheduler::Loop::accept(Sequence& sequence, const SampledToken& sample, const StepResult& result) {
  CHECK_EQ(sequence.num_pending(), 0);
  if (sequence.num_generated() == 0) sequence.timings.first_token = options_.now();
  sequence.tokens.push_back(sample.token);
  ++counters_.generated_tokens;
  AnswerText::Step step = sequence.answer.push(sample.token, sample.logprob);
  if (sample.score >= 0) step.event.score = result.scores[static_cast<std::size_t>(sample.score)];
  step.event.prompt_scores = std::exchange(sequence.prompt_scores, {});
  if (sequence.grammar) {
    const Result<bool> whole = sequence.grammar->accept(sample.token);
    if (!whole.ok()) {
      fail(sequence, whole.error());
      return;
    }
    if (whole.value() && !step.reason) step.reason = FinishReason::kEndOfSequence;
  }
  step.event.last = step.reason.has_value();
  sequence.stream->push(std::move(step.event));
  if (step.reason.has_value()) finish(sequence, *step.reason);
}

FinishEvent& Scheduler::Loop::finish(Sequence& sequence, FinishReason reason) {
  sequence.timings.finished = options_.now();
  FinishEvent event{.reason = reason,
                    .generated_text = {},
                    .tail = {},
                    .prompt_tokens = sequence.num_prompt_tokens,
                    .generated_tokens = 0,
                    .cached_tokens = sequence.num_prompt_hits,
                    .timings = sequence.timings};
  sequence.answer.finish(event);
  sequence.ended = true;
  return std::get<FinishEvent>(sequence.last_event.emplace(std::move(event)));
}

}  // namespace shoal
