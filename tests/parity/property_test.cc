// Properties of every family, on drawn cases: a sequence alone, in a batch, in chunks and token by token gives the
// same bits, whatever adapters its neighbours use. The seed of each case is printed with a failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "core/thread_pool.h"
#include "ops/backends.h"
#include "parity/parity_run.h"

namespace shoal {
namespace {

constexpr int kCasesPerFamily = 50;

struct Family {
  const char* name;
  const char* folder;
  std::vector<std::string> adapters;
  std::int64_t longest;  // tokens of a sequence
};

std::vector<Family> families() {
  return {{"solar", "tests/goldens/solar-pro-like", {"all"}, 200},
          {"llama", "tests/goldens/solar-10.7b-like", {"all", "head", "r256", "pattern"}, 600},
          {"rw", "tests/goldens/falcon-40b-like", {"all"}, 300},
          {"rw_alibi", "tests/goldens/falcon-rw-like", {"all"}, 200},
          {"santacoder", "tests/goldens/santacoder-mqa", {"all", "attn"}, 72},
          {"cohere", "tests/goldens/command-r-plus-like", {"head", "qv"}, 200}};
}

class PathSource final : public AdapterSource {
 public:
  explicit PathSource(std::string folder) : folder_(std::move(folder)) {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    return std::filesystem::path(folder_) / ("adapter_" + key.id);
  }

 private:
  std::string folder_;
};

class Property : public testing::TestWithParam<DType> {
 protected:
  using Logits = std::vector<std::vector<float>>;

  void load(const Family& family) {
    source_ = std::make_unique<PathSource>(family.folder);
    EngineOptions options;
    options.model_path = family.folder;
    options.dtype = GetParam();
    options.kv_cache_bytes = std::int64_t{32} << 20;
    if (std::string_view(family.name) != "santacoder") options.min_served_positions = family.longest;
    engine_ = std::make_unique<ModelEngine>(options, *backend_, *source_, wakeup_);
    longest_ = std::min(family.longest, engine_->info().max_positions);
    adapters_ = {-1};
    for (const std::string& id : family.adapters) {
      const AdapterHandle handle = engine_->acquire_adapter({.id = id});
      while (engine_->adapter_status(handle).state == AdapterState::kLoading) wakeup_.wait();
      ASSERT_EQ(engine_->adapter_status(handle).state, AdapterState::kReady) << id;
      adapters_.push_back(handle.slot);
    }
  }

  std::vector<ForcedSequence> draw(std::mt19937& random) {
    std::vector<ForcedSequence> sequences(1 + random() % 9);
    for (ForcedSequence& sequence : sequences) {
      // Mostly short, since each case runs several times.
      const std::int64_t cap = random() % 8 == 0 ? longest_ : std::min<std::int64_t>(longest_, 40);
      sequence.input_ids.resize(1 + random() % static_cast<std::uint32_t>(cap));
      for (std::int64_t& id : sequence.input_ids) id = random() % engine_->info().vocab_size;
      sequence.adapter = adapters_[random() % adapters_.size()];
    }
    return sequences;
  }

  Logits run(const std::vector<ForcedSequence>& sequences, TeacherForcingOptions options) {
    options.block_order = BlockOrder::kShuffled;
    Logits logits(sequences.size());
    run_teacher_forcing(*engine_, sequences, options,
                        [&](std::size_t sequence, std::int64_t /*first_position*/, const Tensor& rows) {
                          const std::span<const float> values = rows.span<float>();
                          logits[sequence].insert(logits[sequence].end(), values.begin(), values.end());
                        });
    return logits;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(available_isas().back(), pool_);
  Wakeup wakeup_;
  std::unique_ptr<PathSource> source_;
  std::unique_ptr<ModelEngine> engine_;
  std::vector<std::int32_t> adapters_;
  std::int64_t longest_ = 0;
};

TEST_P(Property, AloneIsInABatchIsInChunksIsTokenByToken) {
  for (const Family& family : families()) {
    load(family);
    for (int seed = 0; seed < kCasesPerFamily; ++seed) {
      std::mt19937 random(static_cast<std::uint32_t>(seed));
      const std::vector<ForcedSequence> sequences = draw(random);
      const Logits whole = run(sequences, {});
      const std::size_t chosen = random() % sequences.size();
      EXPECT_TRUE(same_bits(run({sequences[chosen]}, {})[0], whole[chosen]))
          << family.name << " seed " << seed << ": alone differs from its batch";
      const auto chunk = static_cast<std::int64_t>(1 + random() % 20);
      EXPECT_EQ(run(sequences, {.chunk = chunk}), whole) << family.name << " seed " << seed << ": chunks of " << chunk;
      if (seed % 5 != 0) continue;
      EXPECT_EQ(run({sequences[chosen]}, {.decode_from = 1})[0], whole[chosen])
          << family.name << " seed " << seed << ": token by token";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Property, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

}  // namespace
}  // namespace shoal
