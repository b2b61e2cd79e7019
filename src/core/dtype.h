// Element types and the bit-exact conversions between 16-bit floats and float. Used by every room.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3, kInt8, kUInt8, kInt32, kInt64, kBool };

std::int64_t dtype_bytes(DType dtype);
// "float32", "bfloat16", ... as in config.json's torch_dtype and on the command line.
std::string_view dtype_name(DType dtype);
// "F32", "BF16", ... as in a safetensors header; nullopt for a kind we do not know.
std::optional<DType> dtype_from_safetensors(std::string_view name);
// "float32", "torch.bfloat16", "bf16", ...; nullopt for others.
std::optional<DType> dtype_from_name(std::string_view name);
bool is_float(DType dtype);

// Storage of a bfloat16 or float16 value; arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits = 0;
};
struct Float16 {
  std::uint16_t bits = 0;
};

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

float to_float(Float16 value);
// Round to nearest, ties to even; beyond 65504 becomes infinity; NaN stays NaN.
Float16 to_float16(float value);

}  // namespace shoal
