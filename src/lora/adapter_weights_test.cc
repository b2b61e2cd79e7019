#include "lora/adapter_weights.h"

#include <gtest/gtest.h>

#include "core/buffer.h"
#include "lora/adapter_source.h"
#include "lora/place_in.h"
#include "ops/backends.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

class AdapterWeightsTest : public testing::Test {
 protected:
  AdapterWeightsTest() { targets_.add({.path = "q", .in_features = 3, .out_features = 4, .row_order = {}}); }

  void write(float alpha, float first) const {
    folder_.write("adapter_config.json", R"({"peft_type": "LORA", "lora_alpha": )" + std::to_string(alpha) + "}");
    write_floats(folder_.file("adapter_model.safetensors"),
                 {{"base_model.model.q.lora_A.weight", {2, 3}, {first, 2, 3, 4, 5, 6}},
                  {"base_model.model.q.lora_B.weight", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}});
  }
  Result<AdapterWeights> load() { return load_adapter(folder_.path(), targets_, place_in(memory_)); }
  AdapterIdentity identity(float alpha, float first) {
    write(alpha, first);
    return load().value().identity();
  }

  TempFolder folder_;
  LoraTargets targets_;
  Buffer memory_;
};

TEST_F(AdapterWeightsTest, TheIdentityIsWhatTheAdapterDoes) {
  const AdapterIdentity identity_of_first = identity(4, 1);
  EXPECT_NE(identity_of_first, AdapterIdentity());
  EXPECT_EQ(identity(4, 1), identity_of_first) << "written again";
  EXPECT_NE(identity(4, 1.5F), identity_of_first);
  EXPECT_NE(identity(8, 1), identity_of_first) << "the scale alone";
}

TEST_F(AdapterWeightsTest, ACopyLivesWithoutItsOriginal) {
  write(4, 1);
  const std::unique_ptr<Backend> backend = make_reference_backend();
  const AdapterWeights original = load().value();
  Buffer region(host_allocator(), original.device_bytes(*backend));
  const AdapterWeights copy = original.copy_to(*backend, static_cast<std::byte*>(region.raw()));
  memory_ = Buffer();
  EXPECT_EQ(copy.pairs()[0].a.row<float>(1)[2], 6.0F);
  EXPECT_EQ(copy.pairs()[0].b.row<float>(1)[3], 8.0F) << "transposed";
  EXPECT_EQ(copy.max_rank(), 2);
  EXPECT_EQ(copy.identity(), original.identity());
}

TEST_F(AdapterWeightsTest, NoPlaceIsARefusal) {
  write(4, 1);
  std::int64_t asked_bytes = 0;
  const Result<AdapterWeights> loaded = load_adapter(folder_.path(), targets_, [&](std::int64_t num_bytes) {
    asked_bytes = num_bytes;
    return nullptr;
  });
  EXPECT_FALSE(loaded.ok());
  EXPECT_EQ(asked_bytes, 2 * 32);
  EXPECT_LE(asked_bytes, version_of_folder(folder_.path()).file_bytes) << "the size of the file is enough";
}

TEST_F(AdapterWeightsTest, AVersionChangesWithEitherFile) {
  EXPECT_EQ(version_of_folder(folder_.path()), AdapterVersion());
  write(4, 1);
  const AdapterVersion first = version_of_folder(folder_.path());
  EXPECT_EQ(version_of_folder(folder_.path()), first);
  // Of equal length and with the same time, as tools that copy leave it.
  const auto time = std::filesystem::last_write_time(folder_.file("adapter_config.json"));
  std::filesystem::copy_file(folder_.file("adapter_config.json"), folder_.file("new"));
  std::filesystem::last_write_time(folder_.file("new"), time);
  std::filesystem::rename(folder_.file("new"), folder_.file("adapter_config.json"));
  EXPECT_NE(version_of_folder(folder_.path()), first);
}

}  // namespace
}  // namespace shoal
