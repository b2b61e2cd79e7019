// Merges as AdapterStore serves them: loaded, replaced, refused and counted like any adapter.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <latch>

#include "core/test_patience.h"
#include "engine/adapter_store.h"
#include "ops/backends.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

constexpr std::int64_t kIn = 6;
constexpr std::int64_t kOut = 10;

// Folders below one root. The adapter "gated" is not given before the gate opens.
class GatedSource final : public AdapterSource {
 public:
  explicit GatedSource(std::filesystem::path root) : root_(std::move(root)) {}
  AdapterVersion version(const AdapterKey& key) override {
    EXPECT_FALSE(key.merge) << "sources know single adapters alone";
    return version_of_folder(root_ / key.id);
  }
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    if (key.id == "gated") gate.wait();
    if (std::filesystem::exists(root_ / key.id)) return root_ / key.id;
    return Error{.code = ErrorCode::kAdapterNotFound, .message = fmt::format("adapter '{}' not found", key.id)};
  }
  std::latch gate{1};

 private:
  std::filesystem::path root_;
};

AdapterKey merge_key(AdapterMerge merge) {
  AdapterKey key{.id = merge.ids.front() + "," + merge.ids.back()};
  key.merge = std::move(merge);
  return key;
}

AdapterKey linear(float first_weight = 1.0F) { return merge_key({.ids = {"a", "b"}, .weights = {first_weight, 0.5F}}); }

AdapterKey ties(const std::string& first, const std::string& second) {
  return merge_key(
      {.ids = {first, second}, .weights = {1.0F, 1.0F}, .strategy = MergeStrategy::kTies, .density = 0.5F});
}

class AdapterMergesTest : public testing::Test {
 protected:
  AdapterMergesTest() {
    targets_.add({.path = "q", .in_features = kIn, .out_features = kOut, .row_order = {}});
    add("a", 2, 1.0F);
    add("b", 3, -2.0F);
  }

  // Every value of its A is `value`, of its B one; the scale is 1.
  void add(const std::string& id, std::int64_t rank, float value, const std::string& module = "q") const {
    const std::filesystem::path folder = std::filesystem::path(folder_.path()) / id;
    std::filesystem::create_directories(folder);
    folder_.write(id + "/adapter_config.json", fmt::format(R"({{"peft_type": "LORA", "lora_alpha": {}}})", rank));
    write_floats((folder / "adapter_model.safetensors").string(),
                 {{"base_model.model." + module + ".lora_A.weight",
                   {rank, kIn},
                   std::vector<float>(static_cast<std::size_t>(rank * kIn), value)},
                  {"base_model.model." + module + ".lora_B.weight",
                   {kOut, rank},
                   std::vector<float>(static_cast<std::size_t>(kOut * rank), 1.0F)}});
  }
  AdapterTicket want(AdapterStore& store, const AdapterKey& key) {
    return store.want(key, store.version(key), {.priority = 0, .arrival = next_arrival_++});
  }
  TierState settled(AdapterStore& store, const AdapterTicket& ticket) {
    while (store.state(ticket) == TierState::kMoving) wakeup_.wait();
    return store.state(ticket);
  }
  // What it adds to the first output of an input of ones: its rank in units of its A.
  float effect(AdapterStore& store, const AdapterTicket& ticket) {
    EXPECT_NE(settled(store, ticket), TierState::kFailed);
    const std::optional<PinnedAdapter> pinned = store.pin(ticket);
    if (!pinned) return 0.0F;
    identity_ = pinned->identity;
    slot_ = pinned->slot;
    const LoraPair& pair = store.by_slot()[static_cast<std::size_t>(pinned->slot)]->pairs()[0];
    float sum = 0.0F;
    for (std::int64_t r = 0; r < pair.a.dim(0); ++r) {
      for (std::int64_t j = 0; j < kIn; ++j) sum += pair.a.row<float>(r)[j] * pair.b.row<float>(r)[0];
    }
    return sum * pair.scale / kIn;
  }
  Error error_of(AdapterStore& store, const AdapterKey& key) {
    const AdapterTicket ticket = want(store, key);
    EXPECT_EQ(settled(store, ticket), TierState::kFailed);
    Error error = store.error(ticket);
    store.release(ticket);
    return error;
  }

  TempFolder folder_;
  LoraTargets targets_;
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  Wakeup wakeup_;
  GatedSource source_{folder_.path()};
  AdapterIdentity identity_;  // of what effect() saw last
  std::int32_t slot_ = -1;
  std::int64_t next_arrival_ = 0;
};

TEST_F(AdapterMergesTest, AMergeIsLoadedOnceAndIsAnAdapterOfItsOwn) {
  AdapterStore store(source_, targets_, *backend_, wakeup_, {.device_bytes = 1 << 20, .host_bytes = 1 << 20});
  const AdapterTicket merged = want(store, linear());
  const AdapterTicket again = want(store, linear());
  const AdapterTicket other = want(store, linear(2.0F));
  const AdapterTicket member = want(store, {.id = "a"});
  EXPECT_FLOAT_EQ(effect(store, merged), 2 * 1.0F - 3 * 2.0F * 0.5F);
  const AdapterIdentity identity = identity_;
  EXPECT_FLOAT_EQ(effect(store, again), -1.0F);
  EXPECT_EQ(identity_, identity);
  EXPECT_FLOAT_EQ(effect(store, other), 1.0F);
  EXPECT_NE(identity_, identity);
  EXPECT_FLOAT_EQ(effect(store, member), 2.0F);
  EXPECT_NE(identity_, identity);
  const AdapterTierStats tiers = store.stats().tiers;
  EXPECT_EQ(tiers.loads, 3);
  EXPECT_GE(tiers.device_bytes, (2 + 3) * (kIn + kOut) * 4 * 2 + 2 * (kIn + kOut) * 4) << "all of their bytes";
  for (const AdapterTicket& ticket : {merged, again, other, member}) store.release(ticket);
}

TEST_F(AdapterMergesTest, AReplacedMemberMakesAnotherMerge) {
  AdapterStore store(source_, targets_, *backend_, wakeup_, {.device_bytes = 1 << 20, .host_bytes = 1 << 20});
  const AdapterTicket before = want(store, linear());
  EXPECT_FLOAT_EQ(effect(store, before), -1.0F);
  const AdapterIdentity old_identity = identity_;
  const std::int32_t old_slot = slot_;
  add("b", 1, 4.0F);
  const AdapterTicket after = want(store, linear());
  EXPECT_FLOAT_EQ(effect(store, after), 2 * 1.0F + 4.0F * 0.5F);
  EXPECT_NE(identity_, old_identity);
  const LoraPair& old_pair = store.by_slot()[static_cast<std::size_t>(old_slot)]->pairs()[0];
  EXPECT_EQ(old_pair.a.dim(0), 5) << "who runs keeps the old one";
  for (const AdapterTicket& ticket : {before, after}) store.release(ticket);
}

// Its values take more bytes than the files of its members: the whole change beside a unit matrix.
TEST_F(AdapterMergesTest, AMergeLargerThanItsMembersFindsItsRoom) {
  add("tiny", 1, 1.0F);
  AdapterStore store(source_, targets_, *backend_, wakeup_, {.device_bytes = 1 << 20, .host_bytes = 1 << 20});
  const AdapterKey key = ties("tiny", "tiny");
  const std::int64_t bytes = kIn * (kIn + kOut) * 4;
  AdapterVersion small = store.version(key);
  small.file_bytes = 64;
  const AdapterTicket ticket = store.want(key, small, {.priority = 0, .arrival = next_arrival_++});
  // The first half of the equal elements stays: five of ten rows.
  EXPECT_FLOAT_EQ(effect(store, ticket), 1.0F);
  EXPECT_GE(store.stats().tiers.device_bytes, bytes);
  store.release(ticket);
}

TEST_F(AdapterMergesTest, WhatIsWrongWithAMemberIsToldWithItsName) {
  add("elsewhere", 1, 1.0F, "no_such_layer");
  AdapterStore store(source_, targets_, *backend_, wakeup_, {.device_bytes = 1 << 20, .host_bytes = 1 << 20});
  const Error missing = error_of(store, ties("a", "gone"));
  EXPECT_EQ(missing.code, ErrorCode::kAdapterNotFound);
  EXPECT_EQ(missing.message, "adapter 'gone' not found");
  const Error unfit = error_of(store, ties("a", "elsewhere"));
  EXPECT_EQ(unfit.code, ErrorCode::kAdapterInvalid);
  EXPECT_TRUE(unfit.message.starts_with("adapter 'elsewhere': 2 of 2 tensors match no linear layer")) << unfit.message;
  add("gone", 1, 1.0F);
  const AdapterTicket found = want(store, ties("a", "gone"));
  EXPECT_EQ(settled(store, found), TierState::kOnDevice) << "the next request tries again";
  store.release(found);
}

TEST_F(AdapterMergesTest, MembersThatTheHostHasNoMemoryForAreRefused) {
  const std::int64_t one_bytes = source_.version({.id = "b"}).file_bytes;
  AdapterStore store(source_, targets_, *backend_, wakeup_,
                     {.device_bytes = 1 << 20, .host_bytes = BytePool::rounded(one_bytes)});
  const AdapterTicket alone = want(store, {.id = "b"});
  EXPECT_EQ(settled(store, alone), TierState::kOnDevice);
  store.release(alone);
  const Error error = error_of(store, linear());
  EXPECT_NE(error.message.find("adapter a,b needs"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("--adapter-host-memory"), std::string::npos) << error.message;
}

// Merges that take long are computed one at a time, so that a loader is left for all others.
TEST_F(AdapterMergesTest, SlowMergesLeaveALoaderToOthers) {
  add("gated", 1, 1.0F);
  AdapterStore store(source_, targets_, *backend_, wakeup_,
                     {.device_bytes = 1 << 20, .host_bytes = 1 << 20, .num_loader_threads = 2});
  const AdapterTicket first = want(store, ties("gated", "a"));
  const AdapterTicket second = want(store, ties("gated", "b"));
  const AdapterTicket single = want(store, {.id = "a"});
  const AdapterTicket sum = want(store, linear());
  EXPECT_TRUE(test::eventually([&] { return store.state(single) == TierState::kOnDevice; }));
  EXPECT_TRUE(test::eventually([&] { return store.state(sum) == TierState::kOnDevice; })) << "no more than a load";
  EXPECT_EQ(store.state(first), TierState::kMoving);
  EXPECT_EQ(store.state(second), TierState::kMoving);
  source_.gate.count_down();
  EXPECT_TRUE(test::eventually([&] { return store.state(first) == TierState::kOnDevice; }));
  EXPECT_TRUE(test::eventually([&] { return store.state(second) == TierState::kOnDevice; }));
  for (const AdapterTicket& ticket : {first, second, single, sum}) store.release(ticket);
}

}  // namespace
}  // namespace shoal
