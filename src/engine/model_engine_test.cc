#include "engine/model_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/allocation_counter.h"
#include "core/block_size.h"
#include "core/thread_pool.h"
#include "engine/largest_steps.h"
#include "engine/pin_adapter.h"
#include "ops/backends.h"

namespace shoal {
namespace {

const char* const kModel = "tests/goldens/solar-10.7b-like";

class FolderSource final : public AdapterSource {
 public:
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    return std::filesystem::path(kModel) / ("adapter_" + key.id);
  }
  AdapterVersion version(const AdapterKey& key) override { return version_of_folder(fetch(key).value()); }
};

// Six decoding sequences and a chunk of a prompt in each step, over the base model and three adapters; sampled rows
// with and without penalties.
class MixedSteps {
 public:
  static constexpr std::int32_t kDecoding = 6;
  static constexpr std::int32_t kPromptChunk = 40;
  static constexpr std::int32_t kBlocksEach = 8;

  explicit MixedSteps(Engine& engine, std::vector<std::int32_t> adapters)
      : engine_(engine), adapters_(std::move(adapters)) {
    plan_.sequences.reserve(kDecoding + 1);
    plan_.input_ids.reserve(1024);
    plan_.block_ids.reserve(1024);
    plan_.history_ids.reserve(1024);
  }

  void build_plan() {
    plan_.clear();
    for (std::int32_t i = 0; i < kDecoding; ++i) add(i, decoded_, 1);
    add(kDecoding, 0, kPromptChunk);
    ++decoded_;
  }
  void step() { ASSERT_EQ(engine_.step(plan_).samples.size(), static_cast<std::size_t>(kDecoding + 1)); }

 private:
  void add(std::int32_t index, std::int32_t cached, std::int32_t query) {
    PlanSequence sequence{.state_slot = index,
                          .input_begin = static_cast<std::int64_t>(plan_.input_ids.size()),
                          .query_length = query,
                          .cached_length = cached,
                          .block_begin = static_cast<std::int64_t>(plan_.block_ids.size()),
                          .num_blocks = static_cast<std::int32_t>(blocks_for_tokens(cached + query)),
                          .adapter = adapters_[static_cast<std::size_t>(index) % adapters_.size()],
                          .logit_rows = 1};
    if (index % 2 == 1) {
      sequence.sampling = {.greedy = false, .temperature = 0.7F, .top_k = 20, .top_p = 0.9F, .seed = 5};
    }
    if (index % 4 == 2) {
      sequence.sampling.watermark_gamma = 0.5F;
      sequence.sampling.watermark_delta = 2.0F;
    }
    if (index % 3 == 1) {
      sequence.sampling.repetition_penalty = 1.2F;
      sequence.sampling.frequency_penalty = 0.1F;
      if (cached == 0) {
        sequence.history_begin = static_cast<std::int64_t>(plan_.history_ids.size());
        sequence.history_length = sequence.history_prompt_length = query;
        for (std::int32_t i = 0; i < query; ++i) plan_.history_ids.push_back(i);
      }
    }
    for (std::int32_t i = 0; i < query; ++i) plan_.input_ids.push_back((cached + i * 7 + index) % 90);
    for (std::int32_t block = 0; block < sequence.num_blocks; ++block) {
      plan_.block_ids.push_back(index * kBlocksEach + block);
    }
    plan_.sequences.push_back(sequence);
  }

  Engine& engine_;
  std::vector<std::int32_t> adapters_;
  std::int32_t decoded_ = 0;
  StepPlan plan_;
};

class ModelEngineTest : public ::testing::Test {
 protected:
  ModelEngineTest() {
    options.model_path = kModel;
    options.kv_cache_bytes = std::int64_t{8} << 20;
  }

  ThreadPool pool{2};
  const std::unique_ptr<Backend> backend = make_cpu_backend(default_isa(), pool);
  FolderSource source;
  Wakeup wakeup;
  EngineOptions options;
};

// Whatever the limits asked for, memory is planned for what the cache can hold.
TEST_F(ModelEngineTest, LimitsFollowTheCache) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  options.kv_cache_bytes = std::int64_t{1} << 20;
  options.max_step_tokens = kHuge;
  options.max_sequences = kHuge;
  options.adapters.max_device_adapters = kHuge;
  const ModelEngine engine(options, *backend, source, wakeup);
  EXPECT_EQ(engine.info().max_step_tokens, engine.info().num_blocks * kBlockSize);
  EXPECT_EQ(engine.info().max_sequences, engine.info().num_blocks);
}

// The logits of `token` at `position` of a sequence that holds these blocks.
std::vector<float> decode_logits(Engine& engine, std::vector<std::int32_t> blocks, std::int32_t position,
                                 StepPlan plan) {
  plan.sequences.push_back({.query_length = 1,
                            .cached_length = position,
                            .num_blocks = static_cast<std::int32_t>(blocks.size()),
                            .logit_rows = 1});
  plan.input_ids = {5};
  plan.block_ids = std::move(blocks);
  plan.return_logits = true;
  const std::span<const float> logits = engine.step(plan).logits.span<float>();
  return {logits.begin(), logits.end()};
}

TEST_F(ModelEngineTest, CopiesAndPoisonsBlocksOfEveryLayer) {
  constexpr std::int32_t kPrompt = 20;
  options.kv_cache_bytes = std::int64_t{1} << 20;
  ModelEngine engine(options, *backend, source, wakeup);
  StepPlan prompt;
  prompt.sequences.push_back({.query_length = kPrompt, .num_blocks = 2, .logit_rows = 1});
  for (std::int32_t i = 0; i < kPrompt; ++i) prompt.input_ids.push_back(i);
  prompt.block_ids = {0, 1};
  engine.step(prompt);

  const std::vector<float> original = decode_logits(engine, {0, 1}, kPrompt, {});
  StepPlan copies;
  copies.copy_blocks = {{.from = 0, .to = 3}, {.from = 1, .to = 2}};
  EXPECT_EQ(decode_logits(engine, {3, 2}, kPrompt, copies), original);
  StepPlan poison;
  poison.poison_blocks = {3};
  EXPECT_TRUE(std::isnan(decode_logits(engine, {3, 2}, kPrompt, poison)[0]));
  EXPECT_EQ(decode_logits(engine, {0, 1}, kPrompt, {}), original) << "only the named block";
}

TEST_F(ModelEngineTest, StepAllocatesNothing) {
  options.dtype = DType::kBFloat16;
  options.min_served_positions = MixedSteps::kBlocksEach * kBlockSize;
  ModelEngine engine(options, *backend, source, wakeup);
  std::vector<std::int32_t> adapters = {-1};
  for (const char* id : {"all", "r256", "head"}) {
    const Result<HeldAdapter> held = pin_when_ready(engine, wakeup, {.id = id}, /*arrival=*/0);
    ASSERT_TRUE(held.ok()) << id;
    adapters.push_back(held.value().adapter.slot);
  }

  MixedSteps steps(engine, adapters);
  for (int i = 0; i < 5; ++i) {  // the arena grows to what such a step needs
    steps.build_plan();
    steps.step();
  }
  for (int i = 0; i < 60; ++i) {  // crosses block borders
    steps.build_plan();
    const std::int64_t before = test::num_allocations();
    steps.step();
    ASSERT_EQ(test::num_allocations(), before) << "in step " << i;
  }
  const std::int64_t before = test::num_allocations();
  const Buffer buffer(backend->allocator(), 64);
  EXPECT_EQ(test::num_allocations(), before + 1) << "the counter counts";
}

// With them an engine on a device finds out what scratch to keep.
TEST_F(ModelEngineTest, RunsTheLargestStepsOfItsLimits) {
  for (const auto& [tokens, sequences] : {std::pair{1, 1}, {40, 40}, {70, 9}, {300, 2}, {300, 12}}) {
    options.max_step_tokens = tokens;
    options.max_sequences = sequences;
    ModelEngine engine(options, *backend, source, wakeup);
    const StepPlan plan = largest_step(engine.info());
    std::int64_t num_tokens = 0;
    for (const PlanSequence& sequence : plan.sequences) num_tokens += sequence.query_length;
    EXPECT_EQ(num_tokens, std::min<std::int64_t>(tokens, sequences * engine.info().max_positions));
    EXPECT_EQ(std::ssize(plan.sequences), sequences);
    EXPECT_EQ(std::ssize(engine.step(plan).samples), sequences);
    EXPECT_EQ(std::ssize(engine.step(largest_decode(engine.info(), sequences)).samples), sequences);
  }
}

}  // namespace
}  // namespace shoal
