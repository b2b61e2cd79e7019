// The three tokenizers of tests/data/tokenizers, one a style. Used by the harnesses of src/text, in the project's root.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "text/tokenizer.h"

namespace shoal::fuzz {

class Tokenizers final {
 public:
  Tokenizers();

  std::size_t count() const { return loaded_.size(); }
  const Tokenizer& get(std::size_t index) const { return *loaded_[index % loaded_.size()]; }
  // The tokenizer.json that it was loaded from.
  const nlohmann::json& json(std::size_t index) const { return json_[index % json_.size()]; }

 private:
  std::vector<nlohmann::json> json_;
  std::vector<std::unique_ptr<Tokenizer>> loaded_;
};

}  // namespace shoal::fuzz
