// Checkpoint: the weight files of one folder as one set of named tensors. Used by WeightSource and `shoal inspect`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

namespace shoal {

class Checkpoint {
 public:
  // Opens `model.safetensors`, else the shards of `model.safetensors.index.json`, else the only other *.safetensors
  // of the folder. StartError when a shard is missing, when index and shards do not agree on every tensor, when a
  // name stands in two shards, or when the folder has only pickled weights (with the way to convert them) or none.
  static Checkpoint open(const std::string& folder);

  // The folder it was opened from.
  const std::string& path() const { return path_; }
  bool has(std::string_view name) const { return file_of_.contains(name); }
  // Null when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  // The file that holds `name`, which must exist.
  const SafetensorsFile& file_of(std::string_view name) const;
  // The view of `name`, which must exist; see SafetensorsFile::tensor.
  Tensor tensor(std::string_view name) const { return file_of(name).tensor(name); }

  // In ascending order.
  std::vector<std::string> names() const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Of all tensors, without headers.
  std::int64_t total_bytes() const;

 private:
  Checkpoint(std::string path, std::vector<SafetensorsFile> files);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;  // tensor name -> index into files_
};

}  // namespace shoal
