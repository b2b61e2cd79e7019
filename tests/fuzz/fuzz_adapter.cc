// libFuzzer harness: an adapter's two files, read as a request has them read. The first byte says how the rest makes
// them: 'r' for adapter_config.json, a zero byte, adapter_model.safetensors as they are; anything else for files that
// are right but for the choices that the bytes make. Run by hand and, for seconds, in CI.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "fuzz/fuzz_support.h"
#include "lora/adapter_weights.h"
#include "lora/place_in.h"
#include "weights/safetensors.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

using nlohmann::json;

struct AdapterFiles {
  std::string config;
  std::string tensors;
};

// The first five take the adapters of the solar goldens, which the corpus starts from.
LoraTargets make_targets() {
  LoraTargets targets;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string prefix(layer);
    targets.add({.path = prefix + "self_attn.q_proj", .in_features = 128, .out_features = 128, .row_order = {}});
    targets.add({.path = prefix + "self_attn.k_proj", .in_features = 128, .out_features = 64, .row_order = {}});
    targets.add({.path = prefix + "self_attn.v_proj", .in_features = 128, .out_features = 64, .row_order = {}});
    targets.add({.path = prefix + "mlp.up_proj", .in_features = 128, .out_features = 128, .row_order = {}});
    targets.add({.path = prefix + "mlp.down_proj", .in_features = 128, .out_features = 128, .row_order = {}});
  }
  targets.add({.path = "dense", .in_features = 3, .out_features = 5, .row_order = {{3, 2}, {0, 3}}});
  targets.add({.path = "lm_head", .in_features = 1, .out_features = 1, .row_order = {}});
  return targets;
}

std::string make_config(FuzzedDataProvider& choices) {
  json config = {{"peft_type", "LORA"}, {"lora_alpha", 8}, {"r", 4}};
  if (choices.ConsumeBool()) config["lora_alpha"] = choices.ConsumeFloatingPoint<double>();
  if (choices.ConsumeBool()) config["use_rslora"] = choices.ConsumeBool();
  for (int i = choices.ConsumeIntegralInRange(0, 3); i > 0; --i) {
    constexpr const char* kPatterns[] = {"dense", "layers\\.[01]", ".*",      "q_proj", "(a|b)*",
                                         "(",     "x{500}{500}",   "lm_head$"};
    const std::string key =
        choices.ConsumeBool() ? choices.PickValueInArray(kPatterns) : choices.ConsumeRandomLengthString(40);
    config["alpha_pattern"][key] = choices.ConsumeFloatingPointInRange<double>(-1e3, 1e300);
  }
  if (choices.ConsumeIntegralInRange(0, 7) == 0) {
    constexpr const char* kKeys[] = {"use_dora", "bias", "modules_to_save", "peft_type", "lora_alpha", "alpha_pattern"};
    config[choices.PickValueInArray(kKeys)] =
        json::parse(choices.ConsumeRandomLengthString(30), nullptr, /*allow_exceptions=*/false);
  }
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string make_name(FuzzedDataProvider& choices, const LoraTarget& target, bool is_a) {
  if (choices.ConsumeIntegralInRange(0, 15) == 0) return choices.ConsumeRandomLengthString(60);
  const bool is_long = choices.ConsumeIntegralInRange(0, 7) != 0;
  const bool is_plain = choices.ConsumeIntegralInRange(0, 7) != 0;
  return (is_long ? "base_model.model." : "") + target.path + (is_a ? ".lora_A" : ".lora_B") +
         (is_plain ? ".weight" : ".default.weight");
}

std::string make_tensors(FuzzedDataProvider& choices, const LoraTargets& targets) {
  json header = json::object();
  std::int64_t end = 0;
  for (int i = choices.ConsumeIntegralInRange(1, 4); i > 0; --i) {
    const LoraTarget& target =
        targets.at(choices.ConsumeIntegralInRange<std::int32_t>(0, static_cast<std::int32_t>(targets.size()) - 1));
    constexpr std::int64_t kRanks[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 0, 256, 257};
    const std::int64_t rank = choices.PickValueInArray(kRanks);
    constexpr const char* kDTypes[] = {"F32", "BF16", "F16", "I8"};
    const std::string dtype = choices.PickValueInArray(kDTypes);
    const std::int64_t value_bytes = dtype == "F32" ? 4 : dtype == "I8" ? 1 : 2;
    for (const bool is_a : {true, false}) {
      std::vector<std::int64_t> shape = {is_a ? rank : target.out_features, is_a ? target.in_features : rank};
      if (choices.ConsumeIntegralInRange(0, 15) == 0) shape.push_back(choices.ConsumeIntegralInRange(-1, 3));
      if (choices.ConsumeIntegralInRange(0, 15) == 0) shape[0] = choices.ConsumeIntegral<std::int64_t>();
      const std::int64_t begin = end;
      end += value_bytes * rank * (is_a ? target.in_features : target.out_features);
      const std::int64_t slip = choices.ConsumeIntegralInRange(0, 15) == 0 ? choices.ConsumeIntegralInRange(-9, 9) : 0;
      header[make_name(choices, target, is_a)] = {
          {"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end + slip}}};
    }
  }
  const std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::uint64_t header_bytes = text.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file += text;
  // The data repeats what bytes are left, block by block.
  std::string values = choices.ConsumeRemainingBytesAsString();
  if (values.empty()) values.assign(1024, '\0');
  const std::size_t file_bytes = file.size() + static_cast<std::size_t>(end);
  while (file.size() < file_bytes) file.append(values, 0, file_bytes - file.size());
  return file;
}

AdapterFiles make_files(std::string_view input, const LoraTargets& targets) {
  const bool is_raw = input.starts_with('r');
  input.remove_prefix(std::min<std::size_t>(input.size(), 1));
  if (is_raw) {
    std::string config(fuzz::take_part(input));
    return {.config = std::move(config), .tensors = std::string(input)};
  }
  FuzzedDataProvider choices(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  std::string config = make_config(choices);
  return {.config = std::move(config), .tensors = make_tensors(choices, targets)};
}

// B [out, rank] of the file against B transposed [rank, out] in memory, through the order of the base weight's rows.
void check_values(const Tensor& file_b, const LoraPair& pair, const LoraTarget& target) {
  const std::vector<float> source = float_values(file_b);
  const std::vector<float> loaded = float_values(pair.b);
  const std::vector<RowRange> rows = target.row_order.empty() ? identity_rows(target.out_features) : target.row_order;
  const std::int64_t rank = pair.b.dim(0);
  std::int64_t column = 0;
  for (const RowRange& range : rows) {
    for (std::int64_t row = range.begin; row < range.begin + range.count; ++row, ++column) {
      for (std::int64_t r = 0; r < rank; ++r) {
        CHECK_EQ(loaded[static_cast<std::size_t>(r * target.out_features + column)],
                 source[static_cast<std::size_t>(row * rank + r)]);
      }
    }
  }
}

void check_loaded(const AdapterWeights& adapter, const SafetensorsFile& file, const LoraTargets& targets) {
  CHECK_EQ(std::ssize(adapter.pairs()), targets.size());
  // Nothing of the file may be left out in silence.
  CHECK_EQ(2 * adapter.num_modules(), std::ssize(file.tensors()));
  std::int64_t file_bytes = 0;
  for (const auto& [name, info] : file.tensors()) file_bytes += info.num_bytes;
  CHECK_LE(adapter.num_bytes(), file_bytes + 32 * adapter.num_modules());
  for (std::int32_t id = 0; id < targets.size(); ++id) {
    const LoraPair& pair = adapter.pairs()[static_cast<std::size_t>(id)];
    CHECK_EQ(pair.a.defined(), pair.b.defined());
    if (!pair.a.defined()) continue;
    const LoraTarget& target = targets.at(id);
    CHECK_EQ(pair.a.dim(0), pair.b.dim(0));
    CHECK_LE(pair.a.dim(0), adapter.max_rank());
    CHECK_EQ(pair.a.dim(1), target.in_features);
    CHECK_EQ(pair.b.dim(1), target.out_features);
    CHECK(std::isfinite(pair.scale));
    for (const float value : float_values(pair.a)) CHECK(std::isfinite(value));
    for (const auto& [name, info] : file.tensors()) {
      const std::string half = target.path + ".lora_B.";
      const std::size_t place = name.find(half);
      if (place != std::string::npos && (place == 0 || name.starts_with("base_model.model." + half))) {
        check_values(file.tensor(name), pair, target);
      }
    }
  }
}

}  // namespace
}  // namespace shoal

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  static const shoal::LoraTargets kTargets = shoal::make_targets();
  static const shoal::fuzz::ScratchFolder kFolder;
  const std::string_view input(reinterpret_cast<const char*>(data), num_bytes);
  const shoal::AdapterFiles files = shoal::make_files(input, kTargets);
  kFolder.write("adapter_config.json", files.config);
  kFolder.write("adapter_model.safetensors", files.tensors);
  shoal::Buffer memory;
  const auto adapter = shoal::load_adapter(kFolder.path(), kTargets, shoal::place_in(memory));
  if (adapter.ok()) {
    shoal::check_loaded(adapter.value(), shoal::SafetensorsFile(kFolder.path() + "/adapter_model.safetensors"),
                        kTargets);
  } else {
    CHECK(adapter.error().code == shoal::ErrorCode::kAdapterInvalid);
    CHECK(shoal::fuzz::is_plain_message(adapter.error().message));
  }
  return 0;
}
