#include "lora/adapter_check.h"

#include <gtest/gtest.h>

#include "core/buffer.h"
#include "lora/adapter_weights.h"
#include "lora/place_in.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

constexpr const char* kConfig = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";

class AdapterCheckTest : public testing::Test {
 protected:
  AdapterCheckTest() { targets_.add({.path = "q", .in_features = 3, .out_features = 4, .row_order = {}}); }

  void write(const std::string& config, std::int64_t in_features = 3) const {
    folder_.write("adapter_config.json", config);
    const auto values = [](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count), 0.5F); };
    write_floats(folder_.file("adapter_model.safetensors"),
                 {{"base_model.model.q.lora_A.weight", {2, in_features}, values(2 * in_features)},
                  {"base_model.model.q.lora_B.weight", {4, 2}, values(8)}});
  }

  // Of both roads, which must agree.
  std::string refusal() const {
    const Status checked = check_adapter(folder_.path(), targets_);
    Buffer memory;
    const Result<AdapterWeights> loaded = load_adapter(folder_.path(), targets_, place_in(memory));
    EXPECT_EQ(checked.ok(), loaded.ok());
    if (checked.ok()) return "";
    EXPECT_EQ(checked.error().message, loaded.error().message);
    EXPECT_EQ(checked.error().code, loaded.error().code);
    return checked.error().message;
  }

  TempFolder folder_;
  LoraTargets targets_;
};

TEST_F(AdapterCheckTest, TakesWhatLoads) {
  write(kConfig);
  EXPECT_EQ(refusal(), "");
}

TEST_F(AdapterCheckTest, RefusesInOneCleanLineWithoutTheFolder) {
  const auto expect = [this](std::string_view expected) {
    const std::string message = refusal();
    EXPECT_TRUE(message.starts_with(expected)) << message;
    EXPECT_EQ(message.find(folder_.path()), std::string::npos) << message;
    EXPECT_EQ(message.find("exception"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect("adapter_config.json does not exist");
  write("{");
  expect("adapter_config.json: malformed JSON: found parse error at line 1, column 2");
  write(R"({"peft_type": "LORA", "lora_alpha": "x"})");
  expect("adapter_config.json: key lora_alpha: found ");
  write(R"({"peft_type": "LORA", "lora_alpha": 4, "use_dora": true})");
  expect("use_dora is true");
  write(kConfig, 5);
  expect("base_model.model.q.lora_A.weight is float32 [2, 5]");
  folder_.write("adapter_model.safetensors", "short");
  expect("adapter_model.safetensors: ");
  std::filesystem::remove(folder_.file("adapter_model.safetensors"));
  expect("adapter_model.safetensors: file: found No such file or directory");
}

}  // namespace
}  // namespace shoal
