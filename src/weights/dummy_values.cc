#include "weights/dummy_values.h"

#include <bit>
#include <cstring>

#include "core/check.h"

namespace shoal {
namespace {

constexpr int kIndexBits = 12;
constexpr std::int64_t kNumValues = std::int64_t{1} << kIndexBits;
constexpr std::int64_t kDrawsPerWord = 64 / kIndexBits;
constexpr float kNormBound = 0.05F;
constexpr float kVectorBound = 0.02F;

std::uint64_t mix(std::uint64_t value) {  // the finaliser of splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

class RandomWords {
 public:
  RandomWords(std::string_view name, std::int64_t row) {
    state_ = 0xcbf29ce484222325ULL;  // FNV-1a over the name
    for (const char character : name) {
      state_ = (state_ ^ static_cast<unsigned char>(character)) * 0x100000001b3ULL;
    }
    state_ = mix(state_ + mix(static_cast<std::uint64_t>(row) + 1));
  }

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix(state_);
  }

 private:
  std::uint64_t state_ = 0;
};

// The middle of step `index` when (-1, 1) is cut into kNumValues steps.
float unit_value(std::int64_t index) {
  return static_cast<float>(2 * index + 1) / static_cast<float>(kNumValues) - 1.0F;
}

template <typename Bits>
void fill(RandomWords words, const std::vector<Bits>& values, std::int64_t count, Bits* out) {
  constexpr std::uint64_t kMask = static_cast<std::uint64_t>(kNumValues) - 1;
  std::int64_t i = 0;
  for (; i + kDrawsPerWord <= count; i += kDrawsPerWord) {
    const std::uint64_t word = words.next();
    for (std::int64_t draw = 0; draw < kDrawsPerWord; ++draw) {
      out[i + draw] = values[(word >> (kIndexBits * draw)) & kMask];
    }
  }
  if (i == count) return;
  std::uint64_t word = words.next();
  for (; i < count; ++i, word >>= kIndexBits) out[i] = values[word & kMask];
}

bool is_norm_weight(std::string_view name) {
  return name.ends_with("weight") &&
         (name.find("norm") != std::string_view::npos || name.find("ln_") != std::string_view::npos);
}

}  // namespace

DummyValues::DummyValues(DType dtype) : dtype_(dtype) {
  CHECK(is_float(dtype));
  for (std::int64_t index = 0; index < kNumValues; ++index) {
    const float value = DummyValues::kMatrixBound * unit_value(index);
    if (dtype == DType::kFloat32) wide_values_.push_back(std::bit_cast<std::uint32_t>(value));
    if (dtype == DType::kBFloat16) narrow_values_.push_back(to_bfloat16(value).bits);
    if (dtype == DType::kFloat16) narrow_values_.push_back(to_float16(value).bits);
  }
}

void DummyValues::fill_row(std::string_view name, std::int64_t row, std::int64_t cols, std::byte* row_out) const {
  const RandomWords words(name, row);
  if (dtype_ == DType::kFloat32) {
    fill(words, wide_values_, cols, reinterpret_cast<std::uint32_t*>(row_out));
  } else {
    fill(words, narrow_values_, cols, reinterpret_cast<std::uint16_t*>(row_out));
  }
}

std::vector<float> DummyValues::vector(std::string_view name, std::int64_t count) const {
  RandomWords words(name, -1);
  const bool is_norm = is_norm_weight(name);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const float unit = unit_value(static_cast<std::int64_t>(words.next() >> (64 - kIndexBits)));
    value = is_norm ? 1.0F + kNormBound * unit : kVectorBound * unit;
  }
  return values;
}

}  // namespace shoal
