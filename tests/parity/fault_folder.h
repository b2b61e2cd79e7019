// FaultyFolder: a temporary copy of a golden whose files are edited before they are loaded. Used by the fault test.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "parity/golden_case.h"
#include "weights/row_order.h"

namespace shoal {

class FaultyFolder {
 public:
  // Copies the model and the adapters of the case's runs.
  explicit FaultyFolder(const GoldenCase& golden);
  ~FaultyFolder();
  FaultyFolder(const FaultyFolder&) = delete;
  FaultyFolder& operator=(const FaultyFolder&) = delete;

  std::string path() const { return path_.string(); }

  // Applies a JSON merge patch (RFC 7396) to a file of the folder: null erases a key.
  void patch(const std::string& file, std::string_view merge_patch) const;
  // A tensor of the model or of an adapter takes another name, or the values of another one.
  void rename(const std::string& from, const std::string& to) const;
  void swap(const std::string& a, const std::string& b) const;
  void copy(const std::string& from, const std::string& to) const;
  // Stores a fused tensor so that a loader that reorders its rows by `order` gets them as the file had them.
  void undo_row_order(const std::string& name, std::span<const RowRange> order) const;
  // Transposes a square matrix.
  void transpose(const std::string& name) const;

 private:
  struct StoredTensor {
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  using TensorMap = std::map<std::string, StoredTensor>;

  // Rewrites the one file that holds `name`.
  void edit_file_of(const std::string& name, const std::function<void(TensorMap&)>& edit) const;

  std::filesystem::path path_;
};

}  // namespace shoal
