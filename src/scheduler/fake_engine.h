// FakeEngine: an Engine without a model, for scheduler tests. It remembers which token of which text lies in each cache
// slot, fails the test on any wrong plan or stale read, and samples a hash of adapter, seed and text.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/wakeup.h"
#include "engine/adapter_tiers.h"
#include "engine/engine.h"
#include "scheduler/request.h"

namespace shoal {

class FakeEngine final : public Engine {
 public:
  // A sequence with this seed gets no token (as from a row of NaN) once its text is `kNanLength` tokens long.
  static constexpr std::uint64_t kNanSeed = 999;
  static constexpr std::int64_t kNanLength = 12;

  // What one step held, for tests of the order of work.
  struct StepRecord {
    std::int64_t decode_rows = 0;  // of one query token on top of cached ones
    std::int64_t query_tokens = 0;
    std::int64_t sequences = 0;
    std::vector<std::int32_t> adapters;
  };

  // Each adapter takes BytePool::kAlignment bytes, those whose id starts with "big" three times as much.
  FakeEngine(EngineInfo info, Wakeup& wakeup,
             const AdapterTierOptions& adapters = {.device_bytes = 1 << 20, .host_bytes = 1 << 20});

  const EngineInfo& info() const override { return info_; }
  void launch(const StepPlan& plan) override;
  const StepResult& collect() override;
  AdapterTicket want_adapter(const AdapterKey& key, const AdapterVersion& version, const QueuePlace& place) override;
  TierState adapter_state(const AdapterTicket& ticket) const override;
  Error adapter_error(const AdapterTicket& ticket) const override;
  std::optional<PinnedAdapter> pin_adapter(const AdapterTicket& ticket) override;
  void release_adapter(const AdapterTicket& ticket) override;
  AdapterVersion adapter_version(const AdapterKey& key) const override;
  bool adapters_arriving() const override { return false; }  // each is there at once, or waits for a call
  AdapterStats adapter_stats() const override;

  // --- the test's side; any thread ---
  // The score of a token after these: as if the model had seen nothing else.
  static TokenScore score_of(std::int64_t previous, std::int64_t token, std::int32_t num_top);
  // What an engine that runs this request alone samples, the first max_new_tokens.
  std::vector<std::int64_t> solo_tokens(const Request& request) const;
  // The same with the adapter as it was after so many replacements.
  std::vector<std::int64_t> solo_tokens(const Request& request, std::uint64_t generation) const;

  // The final hidden state that it gives such a request.
  std::vector<float> solo_hidden(const Request& request) const;

  // Adapters whose id starts with "slow" load until one of these is called; others are ready at once, but those whose
  // id starts with "missing" are not there.
  void complete_load(const std::string& id);
  void fail_load(const std::string& id, Error error);
  // Its files are other ones from now on: the next load finds other weights.
  void replace_adapter(const std::string& id);
  std::uint64_t num_replacements(const std::string& id) const;

  // A load or an upload that has begun.
  struct HeldMove {
    enum class Kind : std::uint8_t { kLoad, kUpload };
    Kind kind = Kind::kLoad;
    AdapterTiers::Id id = -1;
    std::string adapter;
  };
  // From now on each move lasts until end_move(); `max_loads` loads at a time and one upload. `on_begin` must not call
  // the engine.
  void hold_moves(std::int64_t max_loads, std::function<void(const HeldMove&)> on_begin);
  void end_move(const HeldMove& move, std::optional<Error> error);

  // What ModelEngine::forget_adapter does.
  void forget_adapter(const AdapterKey& key);

  // Requests that want or hold an adapter.
  std::int64_t num_pins() const;
  std::int64_t num_pins(const std::string& id) const;

  // Steps wait at their beginning until they are allowed; by default they run freely. A step that waits for longer than
  // a test's patience fails the test and holds no more.
  void hold();
  void allow(std::int64_t steps);
  void resume();
  void wait_until_held();  // a step is waiting

  enum class FailAt : std::uint8_t { kLaunch, kCollect };
  void fail_next_step(std::string message, FailAt at = FailAt::kLaunch);
  std::vector<StepRecord> records() const;
  void record_steps();
  std::int64_t num_poisoned() const;

 private:
  struct CacheSlot {
    std::int64_t position = -1;  // -1: nothing, or NaN
    std::int64_t token = 0;
    std::uint64_t text = 0;  // hash of adapter and all tokens up to this one
  };
  // What lies in a tier.
  struct Weights {
    std::string id;
    std::uint64_t generation = 0;
  };
  // A step between launch() and collect().
  struct StepUnderWay {
    StepResult result;
    std::vector<std::int32_t> adapters;  // the slots that its rows name
    std::optional<std::string> failure;
  };
  // Of a sequence with penalties after its last step.
  struct History {
    std::int64_t length = -1;          // tokens of its text in the cache
    std::vector<std::int64_t> tokens;  // that were counted
  };

  std::optional<std::string> wait_for_turn();
  void check_plan(const StepPlan& plan);
  void check_row(const StepPlan& plan, std::size_t index);
  void check_blocks(const StepPlan& plan, const PlanSequence& row);
  std::int64_t first_visible(const PlanSequence& row) const;
  std::uint64_t run_row(const StepPlan& plan, const PlanSequence& row);
  std::uint64_t adapter_text(std::int32_t slot) const;
  void follow_history(const StepPlan& plan, const PlanSequence& row, std::uint64_t text, std::int64_t token);
  static void score_targets(const StepPlan& plan, std::size_t index, StepResult& result);
  StepUnderWay& step_before() { return steps_[static_cast<std::size_t>((num_steps_ + 1) % 2)]; }
  std::int64_t input_of(const StepPlan& plan, const PlanSequence& row, std::int64_t query);
  bool runs_under_way(std::int32_t slot) const;
  static std::vector<float> hidden_of(std::uint64_t text, const SamplingParams& sampling);
  std::uint64_t num_replacements(const std::optional<AdapterKey>& adapter) const;
  std::int64_t sample(std::uint64_t text, const SamplingParams& sampling, std::int64_t length) const;
  std::int64_t masked(const StepPlan& plan, const PlanSequence& row, std::int64_t token) const;
  void run_moves();
  bool begin_load();
  bool begin_upload();
  void end_upload(AdapterTiers::Id id, std::int32_t slot);
  void tell();
  void put_on_host(AdapterTiers::Id id, const Weights& weights);
  void forget_evicted();
  std::optional<AdapterTiers::Id> take_slow_load(const std::string& id);

  EngineInfo info_;
  Wakeup& wakeup_;
  std::vector<CacheSlot> cache_;             // [num_blocks * 16]
  std::vector<History> histories_;           // [max_sequences]
  std::vector<std::int64_t> block_readers_;  // [num_blocks] the step that read it last
  std::vector<std::int64_t> block_writers_;  // [num_blocks] the step that wrote it last
  std::vector<std::int64_t> slot_users_;     // [max_sequences]
  std::int64_t num_steps_ = 0;               // launched
  std::int64_t num_collected_ = 0;
  std::array<StepUnderWay, 2> steps_;

  mutable std::mutex mutex_;
  std::condition_variable turn_;
  // Guarded by mutex_:
  AdapterTiers tiers_;
  std::uint64_t told_news_ = 0;
  std::map<AdapterTiers::Id, Weights> on_host_, slow_loads_;
  std::map<AdapterTiers::Id, std::int32_t> held_uploads_;  // the slots that they go to
  std::function<void(const HeldMove&)> on_move_;           // none: moves are not held
  std::int64_t max_loads_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::int32_t, Weights> on_device_;         // by slot
  std::map<std::int32_t, std::int64_t> slot_pins_;    // by slot
  std::map<std::string, std::int64_t> tickets_;       // by adapter, wanted and pinned
  std::map<AdapterTiers::Id, std::string> names_;     // of those that were wanted, for tickets
  std::map<std::string, std::uint64_t> generations_;  // of adapters whose files were replaced
  std::optional<std::string> failure_;
  FailAt fail_at_ = FailAt::kLaunch;
  std::optional<std::int64_t> allowed_steps_;  // none: as many as it likes
  bool held_ = false;
  bool recording_ = false;
  std::vector<StepRecord> records_;
  std::int64_t num_poisoned_ = 0;
};

}  // namespace shoal
