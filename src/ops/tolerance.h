// How far a kernel may be from the reference, in one table. Used by the op tests alone.
#pragma once

#include <array>
#include <cstdint>

#include "core/check.h"
#include "core/dtype.h"

namespace shoal {

enum class OpFamily : std::uint8_t {
  kMatmul,
  kMatmulOfSplitActivations,
  kNorm,
  kRotary,
  kAttention,
  kActivation,
  kLora,
  kLogprob
};

// By the dtype of the op's weight, cache or adapter, relative to the magnitude that each test states beside it
// (the size of the terms that a result is summed from). Activations are float32 throughout, and 16-bit weights are
// exact as float, so all kinds accumulate alike; only the kernel set that splits x into two bfloat16 parts
// loses what is below 2^-18 of each x.
struct Tolerance {
  OpFamily family;
  double float32;
  double bfloat16;
  double float16;
};

inline constexpr std::array<Tolerance, 8> kTolerances{{
    {OpFamily::kMatmul, 1e-6, 1e-6, 1e-6},
    {OpFamily::kMatmulOfSplitActivations, 5e-6, 5e-6, 5e-6},
    {OpFamily::kNorm, 1e-6, 1e-6, 1e-6},
    {OpFamily::kRotary, 3e-7, 3e-7, 3e-7},
    {OpFamily::kAttention, 1e-6, 1e-6, 1e-6},
    {OpFamily::kActivation, 5e-7, 5e-7, 5e-7},
    {OpFamily::kLora, 1e-6, 1e-6, 1e-6},
    {OpFamily::kLogprob, 3e-6, 3e-6, 3e-6},
}};

inline double tolerance(OpFamily family, DType dtype = DType::kFloat32) {
  for (const Tolerance& entry : kTolerances) {
    if (entry.family != family) continue;
    if (dtype == DType::kFloat32) return entry.float32;
    return dtype == DType::kBFloat16 ? entry.bfloat16 : entry.float16;
  }
  CHECK(false);
  return 0.0;
}

}  // namespace shoal
