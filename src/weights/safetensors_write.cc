#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "weights/safetensors.h"
#include "weights/start_error.h"

namespace shoal {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

// Wide dtypes first keeps every tensor aligned without padding, which the format does not allow between tensors.
std::vector<const NamedTensor*> in_file_order(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& named : tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const NamedTensor* left, const NamedTensor* right) {
    const std::int64_t left_bytes = dtype_bytes(left->tensor.dtype());
    const std::int64_t right_bytes = dtype_bytes(right->tensor.dtype());
    return left_bytes != right_bytes ? left_bytes > right_bytes : left->name < right->name;
  });
  return order;
}

std::int64_t data_bytes_of(const Tensor& tensor) { return tensor.num_elements() * dtype_bytes(tensor.dtype()); }

std::string header_text(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string, std::less<>>& metadata) {
  nlohmann::json document = nlohmann::json::object();
  if (!metadata.empty()) document["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const NamedTensor* named : order) {
    CHECK(!document.contains(named->name));
    const std::int64_t end = offset + data_bytes_of(named->tensor);
    document[named->name] = {
        {"dtype", safetensors_dtype_name(named->tensor.dtype())},
        {"shape", std::vector<std::int64_t>(named->tensor.shape().begin(), named->tensor.shape().end())},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = document.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

void write_tensor(std::ofstream& stream, const Tensor& tensor) {
  const auto* data = static_cast<const char*>(tensor.raw());
  if (tensor.contiguous()) {
    stream.write(data, data_bytes_of(tensor));
    return;
  }
  const std::int64_t element_bytes = dtype_bytes(tensor.dtype());
  for (std::int64_t row = 0; row < tensor.dim(0); ++row) {
    stream.write(data + row * tensor.row_stride() * element_bytes, tensor.row_elements() * element_bytes);
  }
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string, std::less<>>& metadata) {
  const std::vector<const NamedTensor*> order = in_file_order(tensors);
  const std::string header = header_text(order, metadata);
  std::array<char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((static_cast<std::uint64_t>(header.size()) >> (8 * i)) & 0xffU);
  }
  const std::string partial_path = path + ".partial";
  std::ofstream stream(partial_path, std::ios::binary | std::ios::trunc);
  stream.write(length.data(), std::ssize(length));
  stream.write(header.data(), std::ssize(header));
  for (const NamedTensor* named : order) write_tensor(stream, named->tensor);
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(partial_path, path, error);
  if (!stream || error) {
    std::error_code ignored;
    std::filesystem::remove(partial_path, ignored);
    throw_mismatch(path, "writing the file",
                   {.found = error ? error.message() : "a write error", .expected = "a writable path with room"});
  }
}

}  // namespace shoal
