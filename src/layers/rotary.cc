#include "layers/rotary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/result.h"

namespace shoal {
namespace {

using std::numbers::pi;

// Yarn: the (fractional) pair whose wavelength turns `rotations` times within the original length.
double yarn_correction_dim(const RotaryOptions& options, double rotations) {
  return static_cast<double>(options.rotary_dim) * std::log(options.original_max_positions / (rotations * 2 * pi)) /
         (2 * std::log(options.theta));
}

// Long wavelengths are interpolated, short ones kept, with a ramp over the pairs between.
void scale_yarn(const RotaryOptions& options, std::vector<float>& frequencies) {
  double low = yarn_correction_dim(options, options.beta_fast);
  double high = yarn_correction_dim(options, options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.rotary_dim - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double kept = frequencies[i];
    frequencies[i] = static_cast<float>(kept / options.factor * ramp + kept * (1 - ramp));
  }
}

// Wavelengths above the low-frequency bound are divided, those below the high-frequency bound kept, the rest mixed.
void scale_llama3(const RotaryOptions& options, std::vector<float>& frequencies) {
  const double longest = options.original_max_positions / options.low_freq_factor;
  const double shortest = options.original_max_positions / options.high_freq_factor;
  for (float& frequency : frequencies) {
    const double wavelength = 2 * pi / static_cast<double>(frequency);
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      frequency = static_cast<float>(static_cast<double>(frequency) / options.factor);
      continue;
    }
    const double smooth = (options.original_max_positions / wavelength - options.low_freq_factor) /
                          (options.high_freq_factor - options.low_freq_factor);
    frequency = static_cast<float>((1 - smooth) * static_cast<double>(frequency) / options.factor +
                                   smooth * static_cast<double>(frequency));
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

}  // namespace

double rotary_attention_factor(const RotaryOptions& options) {
  if (options.scaling != RopeScaling::kYarn) return 1.0;
  if (options.attention_factor) return *options.attention_factor;
  if (options.mscale.value_or(0) != 0 && options.mscale_all_dim.value_or(0) != 0) {
    return yarn_mscale(options.factor, *options.mscale) / yarn_mscale(options.factor, *options.mscale_all_dim);
  }
  return yarn_mscale(options.factor, 1.0);
}

std::vector<float> rotary_frequencies(const RotaryOptions& options, std::int64_t served_positions) {
  const auto dim = static_cast<double>(options.rotary_dim);
  double theta = options.theta;
  if (options.scaling == RopeScaling::kDynamic && served_positions > options.max_positions) {
    const double stretch =
        options.factor * static_cast<double>(served_positions) / static_cast<double>(options.max_positions) -
        (options.factor - 1);
    theta *= std::pow(stretch, dim / (dim - 2));
  }
  std::vector<float> frequencies(static_cast<std::size_t>(options.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<float>(1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / dim));
  }
  if (options.scaling == RopeScaling::kLinear) {
    for (float& frequency : frequencies)
      frequency = static_cast<float>(static_cast<double>(frequency) / options.factor);
  }
  if (options.scaling == RopeScaling::kYarn) scale_yarn(options, frequencies);
  if (options.scaling == RopeScaling::kLlama3) scale_llama3(options, frequencies);
  return frequencies;
}

Rotary::Rotary(const LoadContext& load, const RotaryOptions& options) : style_(options.style) {
  if (options.rotary_dim % 2 != 0) {
    throw StartError(
        fmt::format("a head of {} elements, expected an even number: rotary positions turn pairs", options.rotary_dim));
  }
  const std::vector<float> frequencies = rotary_frequencies(options, load.served_positions);
  const double attention_factor = rotary_attention_factor(options);
  const std::size_t pairs = frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(load.served_positions) * pairs * 2);
  for (std::int64_t position = 0; position < load.served_positions; ++position) {
    float* row = table.data() + static_cast<std::size_t>(position) * pairs * 2;
    for (std::size_t i = 0; i < pairs; ++i) {
      // The angle is rounded to float as transformers does; its cosine and sine are exact.
      const double angle = static_cast<double>(static_cast<float>(position) * frequencies[i]);
      row[i] = static_cast<float>(std::cos(angle) * attention_factor);
      row[pairs + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
  cos_sin_ = Vector::from_host(load.backend, table, {load.served_positions, options.rotary_dim});
}

}  // namespace shoal
