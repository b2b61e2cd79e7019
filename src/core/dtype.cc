#include "core/dtype.h"

#include <array>
#include <cmath>

#include "core/check.h"

namespace shoal {
namespace {

struct DTypeInfo {
  DType dtype;
  std::int64_t bytes;
  std::string_view name;
  std::string_view safetensors;
};

constexpr std::array<DTypeInfo, 9> kDTypes{{
    {DType::kFloat32, 4, "float32", "F32"},
    {DType::kBFloat16, 2, "bfloat16", "BF16"},
    {DType::kFloat16, 2, "float16", "F16"},
    {DType::kFloat8E4M3, 1, "float8_e4m3fn", "F8_E4M3"},
    {DType::kInt8, 1, "int8", "I8"},
    {DType::kUInt8, 1, "uint8", "U8"},
    {DType::kInt32, 4, "int32", "I32"},
    {DType::kInt64, 8, "int64", "I64"},
    {DType::kBool, 1, "bool", "BOOL"},
}};

const DTypeInfo& info(DType dtype) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.dtype == dtype) return entry;
  }
  CHECK(false);
  return kDTypes[0];
}

}  // namespace

std::int64_t dtype_bytes(DType dtype) { return info(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.safetensors == name) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bf16") return DType::kBFloat16;
  if (name == "fp16" || name == "half") return DType::kFloat16;
  if (name == "fp32" || name == "float") return DType::kFloat32;
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1fU) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, in units of 2^-24
    const float units = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(units)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

}  // namespace shoal
