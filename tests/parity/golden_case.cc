#include "parity/golden_case.h"

#include <algorithm>
#include <filesystem>

#include "weights/config_reader.h"
#include "weights/safetensors.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

GoldenSequence read_sequence(const SafetensorsFile& file, const std::string& name) {
  GoldenSequence sequence;
  sequence.name = name;
  sequence.input_ids = int_values(file.tensor(name + ".input_ids"));
  sequence.logits = float_values(file.tensor(name + ".logits"));
  if (file.has(name + ".greedy")) {
    sequence.greedy = int_values(file.tensor(name + ".greedy"));
    sequence.gap = float_values(file.tensor(name + ".gap"));
  }
  const std::vector<float> error = float_values(file.tensor(name + ".bf16_error"));
  sequence.bf16_error_max = error.at(0);
  sequence.bf16_error_rms = error.at(1);
  return sequence;
}

GoldenRun read_run(const SafetensorsFile& file, const std::string& adapter) {
  GoldenRun run{.adapter = adapter, .sequences = {}};
  const std::string prefix = adapter.empty() ? "" : adapter + ".";
  for (int i = 0; file.has(prefix + "p" + std::to_string(i) + ".input_ids"); ++i) {
    run.sequences.push_back(read_sequence(file, prefix + "p" + std::to_string(i)));
  }
  return run;
}

}  // namespace

std::vector<GoldenCase> read_golden_cases(const std::string& root) {
  std::vector<GoldenCase> cases;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string config_path = (entry.path() / "config.json").string();
    if (!std::filesystem::exists(config_path)) continue;
    if (ConfigReader::from_file(config_path).has("quantization_config")) continue;
    GoldenCase golden{.name = entry.path().filename().string(), .folder = entry.path().string(), .runs = {}};
    const SafetensorsFile expected((entry.path() / "expected.safetensors").string());
    golden.runs.push_back(read_run(expected, ""));
    for (const auto& child : std::filesystem::directory_iterator(entry.path())) {
      const std::string name = child.path().filename().string();
      if (name.starts_with("adapter_")) golden.runs.push_back(read_run(expected, name.substr(8)));
    }
    std::sort(golden.runs.begin(), golden.runs.end(),
              [](const GoldenRun& a, const GoldenRun& b) { return a.adapter < b.adapter; });
    cases.push_back(std::move(golden));
  }
  std::sort(cases.begin(), cases.end(), [](const GoldenCase& a, const GoldenCase& b) { return a.name < b.name; });
  return cases;
}

LogitBound logit_bound(DType dtype, const GoldenSequence& sequence, DeviceKind device) {
  const double exact = device == DeviceKind::kCpu ? 5e-5 : 1e-4;
  if (dtype == DType::kFloat32) return {.largest = exact, .rms = exact};
  const double share = dtype == DType::kFloat16 ? 0.25 : 1.0;
  return {.largest = share * std::max(1.5 * static_cast<double>(sequence.bf16_error_max), 1e-2),
          .rms = share * std::max(1.5 * static_cast<double>(sequence.bf16_error_rms), 3e-3)};
}

}  // namespace shoal
