#include "cli/token_file.h"

#include <fmt/core.h>

#include "core/result.h"
#include "weights/safetensors.h"
#include "weights/tensor_values.h"

namespace shoal {

std::vector<NamedIds> read_token_file(const std::string& path) {
  constexpr std::string_view kName = "input_ids";
  const SafetensorsFile file(path);
  std::vector<NamedIds> sequences;
  for (const auto& [name, info] : file.tensors()) {
    if (name != kName && !name.ends_with(".input_ids")) continue;
    if (info.dtype != DType::kInt64 || info.shape.size() != 1 || info.shape[0] == 0) {
      throw StartError(
          fmt::format("{}: {} is {}, expected int64 [tokens] with at least one", path, name, info.describe()));
    }
    sequences.push_back({.name = name.substr(0, name.size() - kName.size()), .ids = int_values(file.tensor(name))});
  }
  if (sequences.empty()) throw StartError(fmt::format("{}: no tensor is named input_ids or *.input_ids", path));
  return sequences;
}

}  // namespace shoal
