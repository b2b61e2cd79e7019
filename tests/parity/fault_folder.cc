#include "parity/fault_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/result.h"
#include "weights/safetensors.h"

namespace shoal {

FaultyFolder::FaultyFolder(const GoldenCase& golden) {
  std::string pattern = (std::filesystem::temp_directory_path() / "shoal_fault_XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
  for (const auto& entry : std::filesystem::directory_iterator(golden.folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "expected.safetensors") {
      std::filesystem::copy_file(entry.path(), path_ / name);
    }
  }
  for (const GoldenRun& run : golden.runs) {
    if (run.adapter.empty()) continue;
    const std::string name = "adapter_" + run.adapter;
    std::filesystem::copy(std::filesystem::path(golden.folder) / name, path_ / name,
                          std::filesystem::copy_options::recursive);
  }
}

FaultyFolder::~FaultyFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void FaultyFolder::patch(const std::string& file, std::string_view merge_patch) const {
  const std::filesystem::path path = path_ / file;
  nlohmann::json document = nlohmann::json::parse(std::ifstream(path));
  const nlohmann::json before = document;
  document.merge_patch(nlohmann::json::parse(merge_patch));
  CHECK(document != before);
  std::ofstream(path) << document;
}

void FaultyFolder::rename(const std::string& from, const std::string& to) const {
  edit_file_of(from, [&](TensorMap& tensors) {
    CHECK(!tensors.contains(to));
    tensors[to] = std::move(tensors.at(from));
    tensors.erase(from);
  });
}

void FaultyFolder::swap(const std::string& a, const std::string& b) const {
  edit_file_of(a, [&](TensorMap& tensors) {
    CHECK(tensors.at(a).shape == tensors.at(b).shape);
    std::swap(tensors.at(a), tensors.at(b));
  });
}

void FaultyFolder::copy(const std::string& from, const std::string& to) const {
  edit_file_of(from, [&](TensorMap& tensors) {
    CHECK(tensors.at(from).shape == tensors.at(to).shape);
    tensors.at(to) = tensors.at(from);
  });
}

void FaultyFolder::undo_row_order(const std::string& name, std::span<const RowRange> order) const {
  edit_file_of(name, [&](TensorMap& tensors) {
    StoredTensor& tensor = tensors.at(name);
    const std::vector<std::byte> file = tensor.bytes;
    CHECK_EQ(count_rows(order), tensor.shape[0]);
    const std::int64_t row_bytes = std::ssize(file) / tensor.shape[0];
    auto next = file.begin();
    for (const RowRange& range : order) {
      std::copy_n(next, range.count * row_bytes, tensor.bytes.begin() + range.begin * row_bytes);
      next += range.count * row_bytes;
    }
  });
}

void FaultyFolder::transpose(const std::string& name) const {
  edit_file_of(name, [&](TensorMap& tensors) {
    StoredTensor& tensor = tensors.at(name);
    const std::vector<std::byte> file = tensor.bytes;
    const std::int64_t width = tensor.shape[1];
    CHECK_EQ(tensor.shape[0], width);
    const std::int64_t element_bytes = dtype_bytes(tensor.dtype);
    for (std::int64_t row = 0; row < width; ++row) {
      for (std::int64_t column = 0; column < width; ++column) {
        std::copy_n(file.begin() + (row * width + column) * element_bytes, element_bytes,
                    tensor.bytes.begin() + (column * width + row) * element_bytes);
      }
    }
  });
}

void FaultyFolder::edit_file_of(const std::string& name, const std::function<void(TensorMap&)>& edit) const {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (entry.path().extension() != ".safetensors") continue;
    TensorMap tensors;
    {
      const SafetensorsFile file(entry.path().string());
      if (!file.has(name)) continue;
      for (const auto& [tensor_name, info] : file.tensors()) {
        const std::span<const std::byte> bytes = file.bytes(info);
        tensors[tensor_name] = {.dtype = info.dtype, .shape = info.shape, .bytes = {bytes.begin(), bytes.end()}};
      }
    }
    edit(tensors);
    std::vector<NamedTensor> named;
    for (auto& [tensor_name, tensor] : tensors) {
      named.push_back({tensor_name, Tensor(tensor.bytes.data(), tensor.dtype, tensor.shape)});
    }
    write_safetensors(entry.path().string(), named);
    return;
  }
  throw StartError("no file of the golden holds " + name);
}

}  // namespace shoal
