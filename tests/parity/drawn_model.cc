#include "parity/drawn_model.h"

#include <fmt/core.h>

#include <fstream>

#include "weights/safetensors.h"

namespace shoal {

std::int64_t Draw::between(std::int64_t low, std::int64_t high) {
  CHECK_LE(low, high);
  return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
}

float Draw::noise() {
  // The sum of four uniform numbers: variance 4/12.
  std::uint64_t bits = random_();
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i, bits >>= 16) sum += static_cast<std::int64_t>(bits & 0xffffU);
  constexpr float kInverseDeviation = 1.7320508F;
  return (static_cast<float>(sum) / 65536.0F - 2.0F) * kInverseDeviation;
}

DrawnTensor draw_tensor(Draw& draw, std::vector<std::int64_t> shape, float deviation, float mean) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  DrawnTensor tensor{.shape = std::move(shape), .values = std::vector<float>(static_cast<std::size_t>(count))};
  for (float& value : tensor.values) value = to_float(to_bfloat16(mean + deviation * draw.noise()));
  return tensor;
}

void write_tensors(const std::string& path, const DrawnTensors& tensors, DType dtype) {
  std::vector<std::vector<BFloat16>> rounded;
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    // The writer only reads; Tensor has no const form.
    void* data = const_cast<float*>(tensor.values.data());
    if (dtype == DType::kBFloat16) {
      std::vector<BFloat16>& values = rounded.emplace_back();
      values.reserve(tensor.values.size());
      for (const float value : tensor.values) values.push_back(to_bfloat16(value));
      data = values.data();
    }
    named.push_back({name, Tensor(data, dtype, tensor.shape)});
  }
  write_safetensors(path, named);
}

std::string_view family_name(DrawnFamily family) {
  switch (family) {
    case DrawnFamily::kSolar:
      return "solar";
    case DrawnFamily::kRw:
      return "rw";
    case DrawnFamily::kSantaCoder:
      return "santacoder";
    case DrawnFamily::kCohere:
      return "cohere";
  }
  return "";
}

std::string DrawnModel::describe() const {
  return fmt::format("{} {} layers, {} heads on {}, head_dim {}, hidden {}, vocab {}, {}{}", family_name(family),
                     layers, heads, kv_heads, head_dim, hidden, vocab, dtype_name(file_dtype), note);
}

DrawnModel draw_model(DrawnFamily family, Draw& draw) {
  switch (family) {
    case DrawnFamily::kSolar:
      return draw_solar(draw);
    case DrawnFamily::kRw:
      return draw_rw(draw);
    case DrawnFamily::kSantaCoder:
      return draw_santacoder(draw);
    case DrawnFamily::kCohere:
      return draw_cohere(draw);
  }
  return {};
}

void write_model(const DrawnModel& model, const std::string& folder) {
  std::ofstream(folder + "/config.json") << model.config.dump(2);
  write_tensors(folder + "/model.safetensors", model.tensors, model.file_dtype);
}

}  // namespace shoal
