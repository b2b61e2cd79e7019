#include "engine/adapter_store.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <vector>

#include "core/test_patience.h"
#include "lora/place_in.h"
#include "ops/backends.h"
#include "weights/safetensors.h"

namespace shoal {
namespace {

constexpr std::int64_t kIn = 24;
constexpr std::int64_t kOut = 40;
constexpr std::int64_t kOneBytes = 8 * (kIn + kOut) * 4;  // of an adapter of rank 8
constexpr AdapterStoreOptions kSmall{.device_bytes = 1 << 20, .host_bytes = 1 << 20};

// A folder of small adapters for one target, gone at the end of the test.
class AdapterFolder {
 public:
  AdapterFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shoal-adapters-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~AdapterFolder() { std::filesystem::remove_all(path_); }

  std::filesystem::path add(const std::string& id, std::int64_t rank, const std::string& config = "",
                            const std::string& module = "layer.q_proj") {
    const std::filesystem::path folder = path_ / id;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "adapter_config.json")
        << (config.empty() ? R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16})" : config);
    std::vector<float> a(static_cast<std::size_t>(rank * kIn), 0.5F);
    std::vector<float> b(static_cast<std::size_t>(kOut * rank), 0.25F);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
    const std::vector<NamedTensor> tensors = {{.name = "base_model.model." + module + ".lora_A.weight",
                                               .tensor = Tensor(a.data(), DType::kFloat32, {rank, kIn})},
                                              {.name = "base_model.model." + module + ".lora_B.weight",
                                               .tensor = Tensor(b.data(), DType::kFloat32, {kOut, rank})}};
    write_safetensors((folder / "adapter_model.safetensors").string(), tensors);
    return folder;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Reads wait for `gate`, if there is one.
class FolderSource final : public AdapterSource {
 public:
  explicit FolderSource(std::filesystem::path root, std::latch* gate = nullptr) : root_(std::move(root)), gate_(gate) {}
  AdapterVersion version(const AdapterKey& key) override { return version_of_folder(root_ / key.id); }
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    if (gate_ != nullptr) gate_->wait();
    if (!std::filesystem::exists(root_ / key.id)) {
      return Error{.code = ErrorCode::kAdapterNotFound, .message = key.id + " is not there"};
    }
    return root_ / key.id;
  }

 private:
  std::filesystem::path root_;
  std::latch* gate_;
};

class AdapterStoreTest : public testing::Test {
 protected:
  AdapterStoreTest() {
    targets_.add({.path = "layer.q_proj", .in_features = kIn, .out_features = kOut, .row_order = {}});
  }

  // No two places are the same.
  AdapterTicket want(AdapterStore& store, const std::string& id) {
    const AdapterKey key{.id = id};
    return store.want(key, store.version(key), {.priority = 0, .arrival = next_arrival_++});
  }
  TierState settled(AdapterStore& store, const AdapterTicket& ticket) {
    while (store.state(ticket) == TierState::kMoving) wakeup_.wait();
    return store.state(ticket);
  }
  PinnedAdapter pinned(AdapterStore& store, const AdapterTicket& ticket) {
    for (;;) {
      if (const std::optional<PinnedAdapter> pinned = store.pin(ticket)) return *pinned;
      if (store.state(ticket) == TierState::kFailed) break;
      wakeup_.wait();
    }
    ADD_FAILURE() << store.error(ticket).message;
    return {};
  }

  Result<AdapterWeights> load(const std::filesystem::path& folder) {
    return load_adapter(folder, targets_, place_in(memory_));
  }
  // The message with which an adapter of this folder is refused, "" when it loads.
  std::string refusal(const std::filesystem::path& folder) {
    const Result<AdapterWeights> loaded = load(folder);
    return loaded.ok() ? "" : loaded.error().message;
  }

  AdapterFolder folder_;
  LoraTargets targets_;
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  Wakeup wakeup_;
  Buffer memory_;
  std::int64_t next_arrival_ = 0;
};

TEST_F(AdapterStoreTest, LoadsOnceAndKeepsWhatIsPinned) {
  folder_.add("one", 8);
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket first = want(store, "one");
  const AdapterTicket second = want(store, "one");
  const PinnedAdapter adapter = pinned(store, first);
  EXPECT_EQ(pinned(store, second).slot, adapter.slot);
  EXPECT_EQ(adapter.modules, 1);
  const auto slot = static_cast<std::size_t>(adapter.slot);
  const LoraPair& pair = store.by_slot()[slot]->pairs()[0];
  EXPECT_EQ(pair.scale, 2.0F);
  EXPECT_EQ(pair.b.row<float>(3)[5], 5.0F * 8 + 3) << "B is stored transposed";
  store.release(first);
  EXPECT_NE(store.by_slot()[slot], nullptr) << "the second still runs";
  store.release(second);
  EXPECT_EQ(store.by_slot()[slot], nullptr);
  const AdapterStats stats = store.stats();
  EXPECT_EQ(stats.tiers.device_adapters, 1) << "an unpinned adapter stays while there is room";
  EXPECT_EQ(stats.tiers.loads, 1);
  EXPECT_GT(stats.load_seconds, 0.0);
}

TEST_F(AdapterStoreTest, WhatLoadsIsNotAboutToArrive) {
  folder_.add("one", 8);
  std::latch gate{1};
  FolderSource source(folder_.path(), &gate);
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket ticket = want(store, "one");
  EXPECT_TRUE(test::eventually([&] { return !store.arriving(); }));
  EXPECT_EQ(store.state(ticket), TierState::kMoving) << "a load may take its time, and steps do not wait for it";
  gate.count_down();
  EXPECT_EQ(settled(store, ticket), TierState::kOnDevice);
  EXPECT_TRUE(test::eventually([&] { return !store.arriving(); }));
  store.release(ticket);
}

TEST_F(AdapterStoreTest, ARankCostsItsOwnBytes) {
  const Result<AdapterWeights> small = load(folder_.add("r8", 8));
  const Result<AdapterWeights> large = load(folder_.add("r256", 256));
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(small.value().num_bytes(), 8 * (kIn + kOut) * 4);
  EXPECT_EQ(large.value().num_bytes(), 32 * small.value().num_bytes());
}

TEST_F(AdapterStoreTest, ServesMoreThanEitherMemoryHolds) {
  constexpr int kAdapters = 12;
  for (int i = 0; i < kAdapters; ++i) folder_.add(std::to_string(i), 1 + i);
  FolderSource source(folder_.path());
  constexpr std::int64_t kLargest = kAdapters * (kIn + kOut) * 4 + 1024;  // with the head of its file
  AdapterStore store(source, targets_, *backend_, wakeup_, {.device_bytes = kLargest, .host_bytes = 3 * kLargest});
  for (int i = 0; i < 200; ++i) {
    const int adapter = (i * 7) % kAdapters;
    const AdapterTicket next = want(store, std::to_string((i + 1) * 7 % kAdapters));  // on its way meanwhile
    const AdapterTicket ticket = want(store, std::to_string(adapter));
    store.release(next);
    const PinnedAdapter held = pinned(store, ticket);
    const AdapterWeights& weights = *store.by_slot()[static_cast<std::size_t>(held.slot)];
    ASSERT_EQ(weights.max_rank(), 1 + adapter);
    ASSERT_EQ(weights.pairs()[0].b.row<float>(adapter)[5], static_cast<float>(5 * (1 + adapter) + adapter));
    store.release(ticket);
  }
  const AdapterTierStats tiers = store.stats().tiers;
  EXPECT_GT(tiers.device_evictions, 50);
  EXPECT_GT(tiers.host_evictions, 50);
  EXPECT_EQ(tiers.pinned_bytes, 0);
}

TEST_F(AdapterStoreTest, WhatFindsNoRoomIsToldAndComesLater) {
  for (const char* id : {"a", "b"}) folder_.add(id, 8);
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, {.device_bytes = kOneBytes, .host_bytes = 1 << 20});
  const AdapterTicket a = want(store, "a");
  pinned(store, a);
  const AdapterTicket b = want(store, "b");
  EXPECT_EQ(settled(store, b), TierState::kNoRoom);
  store.release(a);
  while (store.state(b) == TierState::kNoRoom) wakeup_.wait();
  pinned(store, b);
  store.release(b);
}

TEST_F(AdapterStoreTest, AFailureIsToldToItsWaitersAndTriedAgain) {
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket missing = want(store, "late");
  ASSERT_EQ(settled(store, missing), TierState::kFailed);
  EXPECT_EQ(store.error(missing).code, ErrorCode::kAdapterNotFound);
  folder_.add("late", 4);
  const AdapterTicket again = want(store, "late");
  EXPECT_EQ(settled(store, again), TierState::kOnDevice);
  EXPECT_EQ(store.state(missing), TierState::kFailed) << "the first waiter still sees its failure";
  store.release(missing);
  store.release(again);
  EXPECT_EQ(store.stats().tiers.failed_loads, 1);
}

TEST_F(AdapterStoreTest, AReplacedAdapterIsLoadedAnewAndOldRequestsKeepTheirs) {
  folder_.add("one", 8);
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket before = want(store, "one");
  const PinnedAdapter old_adapter = pinned(store, before);
  folder_.add("one", 5);
  const AdapterTicket after = want(store, "one");
  const PinnedAdapter new_adapter = pinned(store, after);
  EXPECT_NE(new_adapter.identity, old_adapter.identity);
  const auto rank_of = [&](const PinnedAdapter& adapter) {
    return store.by_slot()[static_cast<std::size_t>(adapter.slot)]->max_rank();
  };
  EXPECT_EQ(rank_of(old_adapter), 8);
  EXPECT_EQ(rank_of(new_adapter), 5);
  store.release(before);
  folder_.add("one", 8);
  const AdapterTicket back = want(store, "one");
  EXPECT_EQ(pinned(store, back).identity, old_adapter.identity) << "the same weights, read again";
  for (const AdapterTicket& ticket : {after, back}) store.release(ticket);
}

TEST_F(AdapterStoreTest, AReadAmidAReplacementIsDoneAgain) {
  // Its files change while they are read, `changes` times.
  class ChangingSource final : public AdapterSource {
   public:
    ChangingSource(std::filesystem::path folder, int changes) : folder_(std::move(folder)), changes_(changes) {}
    Result<std::filesystem::path> fetch(const AdapterKey& /*key*/) override {
      ++reads;
      if (changes_-- > 0) ++signature_;
      return folder_;
    }
    AdapterVersion version(const AdapterKey& /*key*/) override { return {.signature = signature_, .file_bytes = 8}; }
    std::atomic<int> reads{0};

   private:
    std::filesystem::path folder_;
    std::atomic<int> changes_;
    std::atomic<std::uint64_t> signature_{1};
  };
  const std::filesystem::path folder = folder_.add("one", 8);
  for (const int changes : {3, 100}) {
    ChangingSource source(folder, changes);
    AdapterStore store(source, targets_, *backend_, wakeup_, {.device_bytes = 1 << 20, .host_bytes = 1 << 20});
    const AdapterTicket ticket = want(store, "one");
    const TierState state = settled(store, ticket);
    EXPECT_EQ(state, changes == 3 ? TierState::kOnDevice : TierState::kFailed);
    // It says eight bytes at first: the read that finds out what it needs is one more.
    EXPECT_EQ(source.reads, changes == 3 ? 5 : 4);
    if (changes == 100) {
      EXPECT_NE(store.error(ticket).message.find("changed during"), std::string::npos);
    }
    store.release(ticket);
  }
}

TEST_F(AdapterStoreTest, ASlowReadDelaysNobody) {
  folder_.add("slow", 4);
  std::latch gate{1};
  FolderSource source(folder_.path(), &gate);
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket ticket = want(store, "slow");  // would wait for ever if it waited for the read
  EXPECT_EQ(store.state(ticket), TierState::kMoving);
  gate.count_down();
  EXPECT_EQ(settled(store, ticket), TierState::kOnDevice);
  store.release(ticket);
}

TEST_F(AdapterStoreTest, ReadsSeveralAtOnce) {
  constexpr int kAdapters = 4;
  for (int i = 0; i < kAdapters; ++i) folder_.add(std::to_string(i), 4);
  // Each fetch waits until all have begun.
  class MeetingSource final : public AdapterSource {
   public:
    explicit MeetingSource(std::filesystem::path root) : root_(std::move(root)) {}
    Result<std::filesystem::path> fetch(const AdapterKey& key) override {
      all_.arrive_and_wait();
      return root_ / key.id;
    }
    AdapterVersion version(const AdapterKey& key) override { return version_of_folder(root_ / key.id); }

   private:
    std::filesystem::path root_;
    std::latch all_{kAdapters};
  };
  MeetingSource source(folder_.path());
  AdapterStoreOptions options = kSmall;
  options.num_loader_threads = kAdapters;
  AdapterStore store(source, targets_, *backend_, wakeup_, options);
  std::vector<AdapterTicket> tickets;
  for (int i = 0; i < kAdapters; ++i) tickets.push_back(want(store, std::to_string(i)));
  for (const AdapterTicket& ticket : tickets) {
    EXPECT_EQ(settled(store, ticket), TierState::kOnDevice);
    store.release(ticket);
  }
}

TEST_F(AdapterStoreTest, RefusesWithTheNameAndTheReason) {
  EXPECT_NE(refusal(folder_.add("other", 8, "", "layer.x_proj")).find("layer.x_proj.lora_A"), std::string::npos);
  EXPECT_NE(refusal(folder_.add("large", 257)).find("rank 257"), std::string::npos);
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"use_dora", "true"}, {"modules_to_save", R"(["lm_head"])"}, {"bias", R"("all")"}, {"lora_bias", "true"}}) {
    const std::string config = R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, ")" + key + "\": " + value + "}";
    EXPECT_NE(refusal(folder_.add(key, 8, config)).find(key), std::string::npos) << key;
  }
  EXPECT_NE(refusal(folder_.add("ia3", 8, R"({"peft_type": "IA3"})")).find("IA3"), std::string::npos);
  EXPECT_EQ(refusal(folder_.add("null", 8,
                                R"({"peft_type": "LORA", "lora_alpha": 16, "modules_to_save": null,
                                    "use_dora": false, "base_model_name_or_path": null})")),
            "");
}

TEST_F(AdapterStoreTest, AnExceptionOfTheSourceIsOneRequestsFailure) {
  class ThrowingSource final : public AdapterSource {
   public:
    Result<std::filesystem::path> fetch(const AdapterKey& /*key*/) override { throw std::runtime_error("no disk"); }
    AdapterVersion version(const AdapterKey& /*key*/) override { return {}; }
  };
  ThrowingSource source;
  AdapterStore store(source, targets_, *backend_, wakeup_, kSmall);
  const AdapterTicket ticket = want(store, "gone");
  ASSERT_EQ(settled(store, ticket), TierState::kFailed);
  EXPECT_EQ(store.error(ticket).message, "adapter gone cannot be loaded: no disk");
  store.release(ticket);
}

TEST_F(AdapterStoreTest, RefusesOneModuleUnderTwoNames) {
  const std::filesystem::path folder = folder_.add("twice", 8);
  const std::vector<float> values(8 * kOut, 1.0F);
  std::vector<NamedTensor> tensors;
  for (const char* prefix : {"", "base_model.model."}) {
    const std::string path = std::string(prefix) + "layer.q_proj";
    const auto data = const_cast<float*>(values.data());  // a Tensor is a view of memory that may be written
    tensors.push_back({.name = path + ".lora_A.weight", .tensor = Tensor(data, DType::kFloat32, {8, kIn})});
    tensors.push_back({.name = path + ".lora_B.weight", .tensor = Tensor(data, DType::kFloat32, {kOut, 8})});
  }
  write_safetensors((folder / "adapter_model.safetensors").string(), tensors);
  EXPECT_NE(refusal(folder).find("mean the same"), std::string::npos) << refusal(folder);
}

TEST_F(AdapterStoreTest, ARefusalIsOneShortLineOfUtf8) {
  const std::string hostile = "no\nsuch\u001b[2J" + std::string(500, 'x');
  const auto config = [](const std::string& keys) {
    return R"({"peft_type": "LORA", "lora_alpha": 16, )" + keys + "}";
  };
  const std::vector<std::string> messages = {
      refusal(folder_.add("name", 8, "", "layer\n" + std::string(500, 'x') + "\u001b[2J")),
      refusal(folder_.add("pattern", 8, config(R"("alpha_pattern": {"()" + hostile + R"(": 1})"))),
      refusal(folder_.add("bias", 8, config(R"("bias": ")" + hostile + R"(")"))),
      refusal(folder_.add("bytes", 8, "{\"\xff\xc3"))};
  for (const std::string& message : messages) {
    EXPECT_NE(message, "");
    EXPECT_LT(message.size(), 1000u);
    const auto is_odd = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\xff' || c == '\xc3'; };
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), is_odd)) << message;
  }
}

TEST_F(AdapterStoreTest, BoundsTheNumberAndSizeOfPatterns) {
  const auto config = [](const std::string& patterns) {
    return R"({"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {)" + patterns + "}}";
  };
  std::string many;
  for (int i = 0; i < 4096; ++i) many += fmt::format(R"({}"layer.p{}": 2)", i == 0 ? "" : ", ", i);
  EXPECT_EQ(refusal(folder_.add("many", 8, config(many))), "");
  EXPECT_NE(refusal(folder_.add("more", 8, config(many + R"(, "q": 2)"))).find("4097"), std::string::npos);
  EXPECT_NE(refusal(folder_.add("big", 8, config(R"("x{1000}y{1000}z{1000}w{1000}": 2)"))).find("alpha_pattern"),
            std::string::npos);
}

TEST_F(AdapterStoreTest, ScalesByAlphaRankAndPattern) {
  const auto scale = [&](const std::string& id, std::int64_t rank, const std::string& config) {
    const Result<AdapterWeights> loaded = load(folder_.add(id, rank, config));
    return loaded.ok() ? loaded.value().pairs()[0].scale : -1.0F;
  };
  EXPECT_EQ(scale("rs", 16, R"({"peft_type": "LORA", "lora_alpha": 16, "use_rslora": true})"), 4.0F);
  EXPECT_EQ(scale("end", 8, R"({"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {"q_proj": 32}})"), 4.0F);
  EXPECT_EQ(scale("re", 8, R"({"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {"lay.*\\.[qk]_proj": 8}})"),
            1.0F);
  EXPECT_EQ(scale("no", 8, R"({"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {"proj": 32}})"), 2.0F);
}

}  // namespace
}  // namespace shoal
