#include "scheduler/fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/block_size.h"
#include "core/test_patience.h"

namespace shoal {
namespace {

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t x = state * 0x9e3779b97f4a7c15U + value + 0x632be59bd9b4e019U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint64_t text_of_weights(const std::string& id, std::uint64_t generation) {
  return mix(1 + generation, std::hash<std::string>()(id));
}

std::uint64_t text_of_prompt(const Request& request, std::uint64_t generation) {
  std::uint64_t text =
      request.adapter.has_value() ? text_of_weights(request.adapter->id, generation) : text_of_weights("", 0);
  for (const std::int64_t id : request.prompt_ids) text = mix(text, static_cast<std::uint64_t>(id));
  return text;
}

}  // namespace

FakeEngine::FakeEngine(EngineInfo info, Wakeup& wakeup, const AdapterTierOptions& adapters)
    : info_(std::move(info)),
      wakeup_(wakeup),
      cache_(static_cast<std::size_t>(info_.num_blocks * kBlockSize)),
      histories_(static_cast<std::size_t>(info_.max_sequences)),
      block_readers_(static_cast<std::size_t>(info_.num_blocks), -1),
      block_writers_(static_cast<std::size_t>(info_.num_blocks), -1),
      slot_users_(static_cast<std::size_t>(info_.max_sequences), -1),
      tiers_(adapters) {
  for (StepUnderWay& step : steps_) step.result.samples.reserve(static_cast<std::size_t>(info_.max_sequences));
}

void FakeEngine::launch(const StepPlan& plan) {
  EXPECT_LE(num_steps_ - num_collected_, info_.runs_beside_host ? 1 : 0) << "too many steps are under way";
  StepUnderWay& step = steps_[static_cast<std::size_t>(num_steps_ % 2)];
  step.failure = wait_for_turn();
  check_plan(plan);
  for (const std::int32_t block : plan.poison_blocks) {
    for (std::int64_t offset = 0; offset < kBlockSize; ++offset) {
      cache_[static_cast<std::size_t>(block * kBlockSize + offset)] = CacheSlot();
    }
  }
  StepResult& result = step.result;
  result.clear();
  step.adapters.clear();
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& row = plan.sequences[i];
    check_row(plan, i);
    step.adapters.push_back(row.adapter);
    const std::uint64_t text = run_row(plan, row);
    if (row.embed && row.logit_rows > 0) {
      EXPECT_EQ(row.logit_rows, 1);
      const std::vector<float> hidden = hidden_of(text, row.sampling);
      result.embedded.push_back(static_cast<std::int32_t>(i));
      result.hidden.insert(result.hidden.end(), hidden.begin(), hidden.end());
    }
    const bool is_sampled = row.logit_rows > row.scored_rows && !row.embed;
    const std::int64_t token =
        is_sampled ? masked(plan, row, sample(text, row.sampling, row.cached_length + row.query_length)) : -1;
    if (row.sampling.has_penalties()) follow_history(plan, row, text, token);
    score_targets(plan, i, result);
    if (!is_sampled) continue;
    result.samples.push_back({.sequence = static_cast<std::int32_t>(i), .token = token, .logprob = -1.5F});
    if (row.score == ScoreKind::kNone || token < 0) continue;
    result.samples.back().score = static_cast<std::int32_t>(result.scores.size());
    result.scores.push_back(score_of(input_of(plan, row, row.query_length - 1), token, row.num_top));
  }
  ++num_steps_;
}

const StepResult& FakeEngine::collect() {
  EXPECT_LT(num_collected_, num_steps_) << "no step is under way";
  StepUnderWay& step = steps_[static_cast<std::size_t>(num_collected_++ % 2)];
  if (step.failure) throw std::runtime_error(*step.failure);
  return step.result;
}

// A query token's id, which may be a sample of the step before.
std::int64_t FakeEngine::input_of(const StepPlan& plan, const PlanSequence& row, std::int64_t query) {
  if (row.source == TokenSource::kHost) return plan.input_ids.at(static_cast<std::size_t>(row.input_begin + query));
  EXPECT_EQ(num_steps_, num_collected_ + 1) << "no step is under way whose sample it could be";
  return std::max<std::int64_t>(0, step_before().result.samples.at(static_cast<std::size_t>(row.source_row)).token);
}

bool FakeEngine::runs_under_way(std::int32_t slot) const {
  for (std::int64_t step = num_collected_; step < num_steps_; ++step) {
    const std::vector<std::int32_t>& adapters = steps_[static_cast<std::size_t>(step % 2)].adapters;
    if (std::find(adapters.begin(), adapters.end(), slot) != adapters.end()) return true;
  }
  return false;
}

// Each row scores the token that follows its own, which the next row of the same sequence must agree with.
void FakeEngine::score_targets(const StepPlan& plan, std::size_t index, StepResult& result) {
  const PlanSequence& row = plan.sequences[index];
  EXPECT_LE(row.logit_rows, row.query_length);
  EXPECT_LE(row.logit_rows - row.scored_rows, 1);
  if (row.scored_rows == 0) return;
  result.targets.push_back({.sequence = static_cast<std::int32_t>(index),
                            .begin = static_cast<std::int32_t>(result.scores.size()),
                            .count = row.scored_rows});
  for (std::int32_t i = 0; i < row.scored_rows; ++i) {
    const std::int64_t query = row.query_length - row.logit_rows + i;
    const std::int64_t target = plan.target_ids[static_cast<std::size_t>(row.target_begin + i)];
    const std::int64_t* input = plan.input_ids.data() + row.input_begin;
    if (query + 1 < row.query_length) {
      EXPECT_EQ(target, input[query + 1]) << "a target that is not the next token";
    }
    result.scores.push_back(score_of(input[query], target, row.target_top));
  }
}

TokenScore FakeEngine::score_of(std::int64_t previous, std::int64_t token, std::int32_t num_top) {
  TokenScore score{.logprob = -static_cast<float>(
                                  mix(static_cast<std::uint64_t>(previous), static_cast<std::uint64_t>(token)) % 1024) /
                              64.0F,
                   .rank = num_top + 1};
  for (std::int32_t i = 0; i < num_top; ++i) score.top.push_back({.id = i, .logprob = -0.125F * static_cast<float>(i)});
  return score;
}

// How the step is to fail once it is collected.
std::optional<std::string> FakeEngine::wait_for_turn() {
  std::unique_lock lock(mutex_);
  held_ = true;
  turn_.notify_all();
  if (!turn_.wait_for(lock, test::kPatience, [this] { return !allowed_steps_ || *allowed_steps_ > 0; })) {
    ADD_FAILURE() << "nobody let a held step go on";  // a failed test beats one that never ends
    allowed_steps_.reset();
  }
  held_ = false;
  if (allowed_steps_.has_value()) --*allowed_steps_;
  std::optional<std::string> failure = std::exchange(failure_, std::nullopt);
  if (failure && fail_at_ == FailAt::kLaunch) throw std::runtime_error(*failure);
  return failure;
}

void FakeEngine::check_plan(const StepPlan& plan) {
  EXPECT_FALSE(plan.sequences.empty());
  EXPECT_LE(static_cast<std::int64_t>(plan.sequences.size()), info_.max_sequences);
  std::int64_t query_tokens = 0;
  std::int64_t known_tokens = 0;
  for (const PlanSequence& row : plan.sequences) {
    query_tokens += row.query_length;
    known_tokens += row.source == TokenSource::kHost ? row.query_length : 0;
  }
  EXPECT_LE(query_tokens, info_.max_step_tokens);
  EXPECT_EQ(std::ssize(plan.input_ids), known_tokens);
  EXPECT_LE(static_cast<std::int64_t>(plan.target_ids.size()), info_.max_scored_rows);
  const std::lock_guard lock(mutex_);
  num_poisoned_ += static_cast<std::int64_t>(plan.poison_blocks.size());
  if (!recording_) return;
  StepRecord record{
      .query_tokens = query_tokens, .sequences = static_cast<std::int64_t>(plan.sequences.size()), .adapters = {}};
  for (const PlanSequence& row : plan.sequences) {
    record.decode_rows += row.query_length == 1 && row.cached_length > 0 ? 1 : 0;
    record.adapters.push_back(row.adapter);
  }
  records_.push_back(std::move(record));
}

void FakeEngine::check_row(const StepPlan& plan, std::size_t index) {
  const PlanSequence& row = plan.sequences[index];
  ASSERT_GE(row.query_length, 1);
  if (index > 0 && row.query_length == 1) {
    EXPECT_EQ(plan.sequences[index - 1].query_length, 1) << "rows of one token come first";
  }
  EXPECT_EQ(row.num_blocks, blocks_for_tokens(row.cached_length + row.query_length));
  EXPECT_LE(row.cached_length + row.query_length, info_.max_positions);
  ASSERT_GE(row.state_slot, 0);
  ASSERT_LT(row.state_slot, info_.max_sequences);
  EXPECT_NE(std::exchange(slot_users_[static_cast<std::size_t>(row.state_slot)], num_steps_), num_steps_)
      << "two rows share a state slot";
  check_blocks(plan, row);
}

// Rows may share what none of them writes.
void FakeEngine::check_blocks(const StepPlan& plan, const PlanSequence& row) {
  for (std::int64_t i = first_visible(row) / kBlockSize; i < row.num_blocks; ++i) {
    const auto block = static_cast<std::size_t>(plan.block_ids[static_cast<std::size_t>(row.block_begin + i)]);
    ASSERT_LT(block, block_readers_.size());
    EXPECT_NE(block_writers_[block], num_steps_) << "a block that another row writes";
    if ((i + 1) * kBlockSize > row.cached_length) {
      EXPECT_NE(block_readers_[block], num_steps_) << "a block that another row reads";
      block_writers_[block] = num_steps_;
    } else {
      block_readers_[block] = num_steps_;
    }
  }
}

// The first position of the block in which the sliding window of the first query token begins.
std::int64_t FakeEngine::first_visible(const PlanSequence& row) const {
  if (info_.sliding_window == 0) return 0;
  return std::max<std::int64_t>(0, row.cached_length - info_.sliding_window) / kBlockSize * kBlockSize;
}

// Reads every cached token that the query sees, writes the query tokens; returns the hash of the whole text.
std::uint64_t FakeEngine::run_row(const StepPlan& plan, const PlanSequence& row) {
  std::uint64_t text = adapter_text(row.adapter);
  const std::int64_t first = first_visible(row);
  for (std::int64_t position = first; position < row.cached_length + row.query_length; ++position) {
    const auto block =
        static_cast<std::int64_t>(plan.block_ids[static_cast<std::size_t>(row.block_begin + position / kBlockSize)]);
    if (block < 0 || block >= info_.num_blocks) {
      ADD_FAILURE() << "no block at position " << position;
      return text;
    }
    CacheSlot& slot = cache_[static_cast<std::size_t>(block * kBlockSize + position % kBlockSize)];
    if (position >= row.cached_length) {
      slot.position = position;
      slot.token = input_of(plan, row, position - row.cached_length);
      slot.text = mix(text, static_cast<std::uint64_t>(slot.token));
    }
    const bool unseen_before = position == first && first > 0;
    text = unseen_before ? slot.text : mix(text, static_cast<std::uint64_t>(slot.token));
    EXPECT_TRUE(slot.position == position && slot.text == text)
        << "a wrong or stale key at position " << position << " (found " << slot.position << ")";
  }
  return text;
}

std::uint64_t FakeEngine::adapter_text(std::int32_t slot) const {
  if (slot < 0) return text_of_weights("", 0);
  const std::lock_guard lock(mutex_);
  const auto pins = slot_pins_.find(slot);
  EXPECT_TRUE(pins != slot_pins_.end() && pins->second > 0) << "slot " << slot << " runs without a pin";
  const auto adapter = on_device_.find(slot);
  if (adapter == on_device_.end()) {
    ADD_FAILURE() << "slot " << slot << " runs empty";
    return 0;
  }
  return text_of_weights(adapter->second.id, adapter->second.generation);
}

void FakeEngine::replace_adapter(const std::string& id) {
  const std::lock_guard lock(mutex_);
  ++generations_[id];
}

std::uint64_t FakeEngine::num_replacements(const std::optional<AdapterKey>& adapter) const {
  return adapter ? num_replacements(adapter->id) : 0;
}

std::uint64_t FakeEngine::num_replacements(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto replaced = generations_.find(id);
  return replaced == generations_.end() ? 0 : replaced->second;
}

// The tokens that penalties count must be the text itself: given when it starts or restarts, then grown by samples.
void FakeEngine::follow_history(const StepPlan& plan, const PlanSequence& row, std::uint64_t text, std::int64_t token) {
  History& state = histories_[static_cast<std::size_t>(row.state_slot)];
  std::vector<std::int64_t>& history = state.tokens;
  const bool goes_on = row.cached_length > 0 && row.cached_length == state.length;
  EXPECT_TRUE(goes_on || row.history_length > 0) << "a sequence starts without its history";
  state.length = row.cached_length + row.query_length;
  if (row.history_length > 0) {
    EXPECT_GE(row.history_length, row.history_prompt_length);
    EXPECT_GE(row.history_prompt_length, 1);
    const auto begin = plan.history_ids.begin() + row.history_begin;
    history.assign(begin, begin + row.history_length);
  }
  if (row.logit_rows == 0) return;
  std::uint64_t counted = adapter_text(row.adapter);
  for (const std::int64_t id : history) counted = mix(counted, static_cast<std::uint64_t>(id));
  EXPECT_EQ(counted, text) << "penalties count another text than the one that is sampled";
  history.push_back(std::max<std::int64_t>(0, token));  // as input_of() does
}

std::int64_t FakeEngine::sample(std::uint64_t text, const SamplingParams& sampling, std::int64_t length) const {
  if (sampling.seed == kNanSeed && length >= kNanLength) return -1;
  return static_cast<std::int64_t>(mix(text, sampling.seed) % static_cast<std::uint64_t>(info_.vocab_size));
}

// The first token from this one on that the row's mask allows.
std::int64_t FakeEngine::masked(const StepPlan& plan, const PlanSequence& row, std::int64_t token) const {
  if (row.mask_row < 0 || token < 0) return token;
  const std::int64_t words_each = (info_.vocab_size + 31) / 32;
  const auto words =
      std::span(plan.mask_words)
          .subspan(static_cast<std::size_t>(row.mask_row * words_each), static_cast<std::size_t>(words_each));
  for (std::int64_t step = 0; step < info_.vocab_size; ++step) {
    const std::int64_t id = (token + step) % info_.vocab_size;
    const auto word = static_cast<std::uint32_t>(words[static_cast<std::size_t>(id / 32)]);
    if (((word >> (id % 32)) & 1U) != 0) return id;
  }
  return -1;
}

std::vector<float> FakeEngine::hidden_of(std::uint64_t text, const SamplingParams& sampling) {
  constexpr std::uint64_t kSize = 3;
  std::vector<float> hidden;
  hidden.reserve(kSize);
  for (std::uint64_t i = 0; i < kSize; ++i) {
    hidden.push_back(static_cast<float>(mix(text, i) % 2048) / 1024.0F - 1.0F);
  }
  if (sampling.seed == kNanSeed) hidden.back() = std::numeric_limits<float>::quiet_NaN();
  return hidden;
}

std::vector<float> FakeEngine::solo_hidden(const Request& request) const {
  return hidden_of(text_of_prompt(request, num_replacements(request.adapter)), request.sampling);
}

std::vector<std::int64_t> FakeEngine::solo_tokens(const Request& request) const {
  return solo_tokens(request, num_replacements(request.adapter));
}

std::vector<std::int64_t> FakeEngine::solo_tokens(const Request& request, std::uint64_t generation) const {
  std::uint64_t text = text_of_prompt(request, generation);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < request.max_new_tokens; ++i) {
    tokens.push_back(sample(text, request.sampling, static_cast<std::int64_t>(request.prompt_ids.size()) + i));
    text = mix(text, static_cast<std::uint64_t>(tokens.back()));
  }
  return tokens;
}

void FakeEngine::hold() {
  const std::lock_guard lock(mutex_);
  allowed_steps_ = 0;
}

void FakeEngine::allow(std::int64_t steps) {
  const std::lock_guard lock(mutex_);
  allowed_steps_ = allowed_steps_.value_or(0) + steps;
  turn_.notify_all();
}

void FakeEngine::resume() {
  const std::lock_guard lock(mutex_);
  allowed_steps_.reset();
  turn_.notify_all();
}

void FakeEngine::wait_until_held() {
  std::unique_lock lock(mutex_);
  const bool held = turn_.wait_for(lock, test::kPatience, [this] { return held_ && allowed_steps_ == 0; });
  EXPECT_TRUE(held) << "no step came to be held";
}

void FakeEngine::fail_next_step(std::string message, FailAt at) {
  const std::lock_guard lock(mutex_);
  fail_at_ = at;
  failure_ = std::move(message);
}

void FakeEngine::record_steps() {
  const std::lock_guard lock(mutex_);
  recording_ = true;
}

std::vector<FakeEngine::StepRecord> FakeEngine::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

std::int64_t FakeEngine::num_poisoned() const {
  const std::lock_guard lock(mutex_);
  return num_poisoned_;
}

}  // namespace shoal
