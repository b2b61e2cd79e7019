// GoldenCase: one folder of tests/goldens: a small checkpoint with reference logits of transformers and PEFT.
// Used by the parity tests.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"

namespace shoal {

// One prompt of one run, with what the reference computed for it.
struct GoldenSequence {
  std::string name;                     // "p0", "all.p3"
  std::vector<std::int64_t> input_ids;  // [tokens]
  std::vector<float> logits;            // [tokens, vocab], row-major
  std::vector<std::int64_t> greedy;     // the tokens that follow, empty where the case has none
  std::vector<float> gap;               // top-1 minus top-2 logit at each of them
  float bf16_error_max = 0.0F;          // of transformers in bfloat16, over the largest |logit|
  float bf16_error_rms = 0.0F;
};

// The base model or one adapter of a case.
struct GoldenRun {
  std::string adapter;  // folder name behind "adapter_", empty for the base
  std::vector<GoldenSequence> sequences;
};

struct GoldenCase {
  std::string name;
  std::string folder;
  std::vector<GoldenRun> runs;  // base first
};

// Every case under `root` whose config has no quantization_config, ascending.
std::vector<GoldenCase> read_golden_cases(const std::string& root);

// How far our logits may be from the reference, over the largest |logit| of the sequence.
struct LogitBound {
  double largest = 0.0;
  double rms = 0.0;
};
LogitBound logit_bound(DType dtype, const GoldenSequence& sequence, DeviceKind device = DeviceKind::kCpu);

}  // namespace shoal
