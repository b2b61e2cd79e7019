// The safetensors files of `shoal logits` and `shoal generate --input`: token ids in, tensors out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

struct NamedIds {
  std::string name;  // of the output: "p0." for "p0.input_ids", "" for "input_ids"
  std::vector<std::int64_t> ids;
};

// Tensors named `input_ids` or `*.input_ids` in ascending order of name; others are ignored. StartError when there is
// none, or one is empty or no int64 vector.
std::vector<NamedIds> read_token_file(const std::string& path);

}  // namespace shoal
