#include "scheduler/fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "core/block_size.h"

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

}  // namespace

FakeEngine::FakeEngine(EngineInfo info, Wakeup& wakeup)
    : info_(std::move(info)),
      wakeup_(wakeup),
      cache_(static_cast<std::size_t>(info_.num_blocks * kBlockSize)),
      histories_(static_cast<std::size_t>(info_.max_sequences)),
      block_readers_(static_cast<std::size_t>(info_.num_blocks), -1),
      block_writers_(static_cast<std::size_t>(info_.num_blocks), -1),
      slot_users_(static_cast<std::size_t>(info_.max_sequences), -1) {
  result_.samples.reserve(static_cast<std::size_t>(info_.max_sequences));
}

const StepResult& FakeEngine::step(const StepPlan& plan) {
  wait_for_turn();
  check_plan(plan);
  for (const std::int32_t block : plan.poison_blocks) {
    for (std::int64_t offset = 0; offset < kBlockSize; ++offset) {
      cache_[static_cast<std::size_t>(block * kBlockSize + offset)] = CacheSlot();
    }
  }
  result_.clear();
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& row = plan.sequences[i];
    check_row(plan, i);
    const std::uint64_t text = run_row(plan, row);
    const std::int64_t token =
        row.logit_rows == 0 ? -1 : sample(text, row.sampling, row.cached_length + row.query_length);
    if (row.sampling.has_penalties()) follow_history(plan, row, text, token);
    if (row.logit_rows > 0) {
      result_.samples.push_back({.sequence = static_cast<std::int32_t>(i), .token = token, .logprob = -1.5F});
    }
  }
  ++num_steps_;
  return result_;
}

void FakeEngine::wait_for_turn() {
  std::unique_lock lock(mutex_);
  held_ = true;
  turn_.notify_all();
  turn_.wait(lock, [this] { return !allowed_steps_.has_value() || *allowed_steps_ > 0; });
  held_ = false;
  if (allowed_steps_.has_value()) --*allowed_steps_;
  if (failure_.has_value()) throw std::runtime_error(*std::exchange(failure_, std::nullopt));
}

void FakeEngine::check_plan(const StepPlan& plan) {
  EXPECT_FALSE(plan.sequences.empty());
  EXPECT_LE(static_cast<std::int64_t>(plan.sequences.size()), info_.max_sequences);
  EXPECT_LE(static_cast<std::int64_t>(plan.input_ids.size()), info_.max_step_tokens);
  const std::lock_guard lock(mutex_);
  num_poisoned_ += static_cast<std::int64_t>(plan.poison_blocks.size());
  if (!recording_) return;
  StepRecord record{.query_tokens = static_cast<std::int64_t>(plan.input_ids.size()),
                    .sequences = static_cast<std::int64_t>(plan.sequences.size()),
                    .adapters = {}};
  for (const PlanSequence& row : plan.sequences) {
    record.decode_rows += row.query_length == 1 && row.cached_length > 0 ? 1 : 0;
    record.adapters.push_back(row.adapter);
  }
  records_.push_back(std::move(record));
}

void FakeEngine::check_row(const StepPlan& plan, std::size_t index) {
  const PlanSequence& row = plan.sequences[index];
  EXPECT_EQ(row.source, TokenSource::kHost);
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
    CacheSlot& slot = cache_[static_cast<std::size_t>(block * kBlockSize + position % kBlockSize)];
    if (position >= row.cached_length) {
      slot.position = position;
      slot.token = plan.input_ids[static_cast<std::size_t>(row.input_begin + position - row.cached_length)];
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
  const Adapter& adapter = adapters_.at(static_cast<std::size_t>(slot));
  EXPECT_GT(adapter.pins, 0) << adapter.key.id << " runs without a pin";
  EXPECT_EQ(adapter.state, AdapterState::kReady) << adapter.key.id << " runs before it is loaded";
  return text_of_weights(adapter.key.id, adapter.generation);
}

std::uint64_t FakeEngine::text_of_adapter(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto replaced = generations_.find(id);
  return text_of_weights(id, replaced == generations_.end() ? 0 : replaced->second);
}

void FakeEngine::replace_adapter(const std::string& id) {
  const std::lock_guard lock(mutex_);
  ++generations_[id];
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
  history.push_back(token);
}

std::int64_t FakeEngine::sample(std::uint64_t text, const SamplingParams& sampling, std::int64_t length) const {
  if (sampling.seed == kNanSeed && length >= kNanLength) return -1;
  return static_cast<std::int64_t>(mix(text, sampling.seed) % static_cast<std::uint64_t>(info_.vocab_size));
}

std::vector<std::int64_t> FakeEngine::solo_tokens(const Request& request) const {
  std::uint64_t text = request.adapter.has_value() ? text_of_adapter(request.adapter->id) : text_of_weights("", 0);
  for (const std::int64_t id : request.prompt_ids) text = mix(text, static_cast<std::uint64_t>(id));
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < request.max_new_tokens; ++i) {
    tokens.push_back(sample(text, request.sampling, static_cast<std::int64_t>(request.prompt_ids.size()) + i));
    text = mix(text, static_cast<std::uint64_t>(tokens.back()));
  }
  return tokens;
}

AdapterHandle FakeEngine::acquire_adapter(const AdapterKey& key) {
  const std::lock_guard lock(mutex_);
  Adapter* adapter = find_adapter(key.id);
  if (adapter == nullptr) adapter = &adapters_.emplace_back(Adapter{.key = key, .error = {}});
  if (adapter->pins++ == 0) {
    adapter->generation = generations_[key.id];
    adapter->state = key.id.starts_with("slow") ? AdapterState::kLoading : AdapterState::kReady;
    adapter->error.reset();
  }
  return {.slot = static_cast<std::int32_t>(adapter - adapters_.data())};
}

AdapterStatus FakeEngine::adapter_status(AdapterHandle handle) const {
  const std::lock_guard lock(mutex_);
  const Adapter& adapter = adapters_.at(static_cast<std::size_t>(handle.slot));
  EXPECT_GT(adapter.pins, 0);
  return {.state = adapter.state,
          .error = adapter.error,
          .modules = 1,
          .identity = {.high = adapter.generation + 1, .low = std::hash<std::string>()(adapter.key.id)}};
}

void FakeEngine::release_adapter(AdapterHandle handle) {
  const std::lock_guard lock(mutex_);
  EXPECT_GT(adapters_.at(static_cast<std::size_t>(handle.slot)).pins--, 0) << "released more often than acquired";
}

std::int64_t FakeEngine::num_loaded_adapters() const {
  const std::lock_guard lock(mutex_);
  return std::count_if(adapters_.begin(), adapters_.end(),
                       [](const Adapter& adapter) { return adapter.state == AdapterState::kReady; });
}

FakeEngine::Adapter* FakeEngine::find_adapter(const std::string& id) {
  for (Adapter& adapter : adapters_) {
    if (adapter.key.id == id) return &adapter;
  }
  return nullptr;
}

void FakeEngine::end_load(const std::string& id, AdapterState state, std::optional<Error> error) {
  {
    const std::lock_guard lock(mutex_);
    Adapter* adapter = find_adapter(id);
    if (adapter == nullptr || adapter->state != AdapterState::kLoading) return;
    adapter->state = state;
    adapter->error = std::move(error);
  }
  wakeup_.notify();
}

void FakeEngine::complete_load(const std::string& id) { end_load(id, AdapterState::kReady, std::nullopt); }

void FakeEngine::fail_load(const std::string& id, Error error) {
  end_load(id, AdapterState::kFailed, std::move(error));
}

std::int64_t FakeEngine::num_pins() const {
  const std::lock_guard lock(mutex_);
  std::int64_t pins = 0;
  for (const Adapter& adapter : adapters_) pins += adapter.pins;
  return pins;
}

std::int64_t FakeEngine::num_pins(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  std::int64_t pins = 0;
  for (const Adapter& adapter : adapters_) pins += adapter.key.id == id ? adapter.pins : 0;
  return pins;
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
  turn_.wait(lock, [this] { return held_ && allowed_steps_ == 0; });
}

void FakeEngine::fail_next_step(std::string message) {
  const std::lock_guard lock(mutex_);
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
