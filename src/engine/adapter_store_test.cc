#include "engine/adapter_store.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "ops/backends.h"
#include "weights/safetensors.h"

namespace shoal {
namespace {

constexpr std::int64_t kIn = 24;
constexpr std::int64_t kOut = 40;

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

class FolderSource final : public AdapterSource {
 public:
  explicit FolderSource(std::filesystem::path root, std::chrono::milliseconds delay = {})
      : root_(std::move(root)), delay_(delay) {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    std::this_thread::sleep_for(delay_);
    if (!std::filesystem::exists(root_ / key.id)) {
      return Error{.code = ErrorCode::kAdapterNotFound, .message = key.id + " is not there"};
    }
    return root_ / key.id;
  }

 private:
  std::filesystem::path root_;
  std::chrono::milliseconds delay_;
};

class AdapterStoreTest : public testing::Test {
 protected:
  AdapterStoreTest() {
    targets_.add({.path = "layer.q_proj", .in_features = kIn, .out_features = kOut, .row_order = {}});
  }

  AdapterStatus wait(AdapterStore& store, AdapterHandle handle) {
    while (store.status(handle).state == AdapterState::kLoading) wakeup_.wait();
    return store.status(handle);
  }

  // The message with which an adapter of this folder is refused, "" when it loads.
  std::string refusal(const std::filesystem::path& folder) {
    const Result<AdapterWeights> loaded = load_adapter(folder, targets_, host_allocator());
    return loaded.ok() ? "" : loaded.error().message;
  }

  AdapterFolder folder_;
  LoraTargets targets_;
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  Wakeup wakeup_;
};

TEST_F(AdapterStoreTest, LoadsOnceAndKeepsWhatIsPinned) {
  folder_.add("one", 8);
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, {});
  const AdapterHandle first = store.acquire({.id = "one"});
  const AdapterHandle second = store.acquire({.id = "one"});
  EXPECT_EQ(first.slot, second.slot);
  const AdapterStatus status = wait(store, first);
  ASSERT_EQ(status.state, AdapterState::kReady);
  EXPECT_EQ(status.modules, 1);
  const LoraPair& pair = store.by_slot()[static_cast<std::size_t>(first.slot)]->pairs()[0];
  EXPECT_EQ(pair.scale, 2.0F);
  EXPECT_EQ(pair.b.row<float>(3)[5], 5.0F * 8 + 3) << "B is stored transposed";
  store.release(first);
  store.release(second);
  EXPECT_EQ(store.num_loaded(), 1) << "an unpinned adapter stays while there is room";
}

TEST_F(AdapterStoreTest, ARankCostsItsOwnBytes) {
  const Result<AdapterWeights> small = load_adapter(folder_.add("r8", 8), targets_, host_allocator());
  const Result<AdapterWeights> large = load_adapter(folder_.add("r256", 256), targets_, host_allocator());
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(small.value().num_bytes(), 8 * (kIn + kOut) * 4);
  EXPECT_EQ(large.value().num_bytes(), 32 * small.value().num_bytes());
}

TEST_F(AdapterStoreTest, EvictsTheLeastRecentlyUsedUnpinned) {
  for (const char* id : {"a", "b", "c"}) folder_.add(id, 8);
  FolderSource source(folder_.path());
  const std::int64_t one_bytes = 8 * (kIn + kOut) * 4;
  AdapterStore store(source, targets_, *backend_, wakeup_, {.budget_bytes = 2 * one_bytes});
  const AdapterHandle a = store.acquire({.id = "a"});
  wait(store, a);
  const AdapterHandle b = store.acquire({.id = "b"});
  wait(store, b);
  store.release(b);
  const AdapterHandle c = store.acquire({.id = "c"});
  wait(store, c);
  EXPECT_EQ(store.used_bytes(), 2 * one_bytes);
  EXPECT_NE(store.by_slot()[static_cast<std::size_t>(a.slot)], nullptr) << "a is pinned";
  EXPECT_EQ(store.by_slot()[static_cast<std::size_t>(b.slot)], nullptr) << "b was not";
}

TEST_F(AdapterStoreTest, AFailureIsToldToItsWaitersAndTriedAgain) {
  FolderSource source(folder_.path());
  AdapterStore store(source, targets_, *backend_, wakeup_, {});
  const AdapterHandle missing = store.acquire({.id = "late"});
  const AdapterStatus status = wait(store, missing);
  ASSERT_EQ(status.state, AdapterState::kFailed);
  EXPECT_EQ(status.error->code, ErrorCode::kAdapterNotFound);
  folder_.add("late", 4);
  const AdapterHandle again = store.acquire({.id = "late"});
  EXPECT_EQ(wait(store, again).state, AdapterState::kReady);
  EXPECT_EQ(store.status(missing).state, AdapterState::kFailed) << "the first waiter still sees its failure";
  store.release(missing);
  store.release(again);
}

TEST_F(AdapterStoreTest, ASlowReadDelaysNobody) {
  folder_.add("slow", 4);
  FolderSource source(folder_.path(), std::chrono::milliseconds(200));
  AdapterStore store(source, targets_, *backend_, wakeup_, {});
  const auto start = std::chrono::steady_clock::now();
  const AdapterHandle handle = store.acquire({.id = "slow"});
  EXPECT_EQ(store.status(handle).state, AdapterState::kLoading);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
  EXPECT_EQ(wait(store, handle).state, AdapterState::kReady);
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
  };
  ThrowingSource source;
  AdapterStore store(source, targets_, *backend_, wakeup_, {});
  const AdapterHandle handle = store.acquire({.id = "gone"});
  while (store.status(handle).state == AdapterState::kLoading) wakeup_.wait();
  const AdapterStatus status = store.status(handle);
  ASSERT_EQ(status.state, AdapterState::kFailed);
  EXPECT_EQ(status.error->message, "adapter gone cannot be loaded: no disk");
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
    const Result<AdapterWeights> loaded = load_adapter(folder_.add(id, rank, config), targets_, host_allocator());
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
