#include "fuzz/fuzz_tokenizers.h"

#include <spdlog/spdlog.h>

#include <fstream>

#include "core/check.h"
#include "fuzz/fuzz_support.h"

namespace shoal::fuzz {

Tokenizers::Tokenizers() {
  // What a broken template or tokenizer logs is of no use here and costs more than the rest.
  spdlog::set_level(spdlog::level::off);
  std::ifstream file("tests/data/tokenizers/fixtures.json");
  CHECK(file.is_open());
  const ScratchFolder folder;
  const nlohmann::json fixtures = nlohmann::json::parse(file);
  for (const auto& [style, fixture] : fixtures.items()) {
    json_.push_back(fixture.at("tokenizer"));
    folder.write("tokenizer.json", json_.back().dump());
    loaded_.push_back(Tokenizer::load(folder.path()));
  }
}

}  // namespace shoal::fuzz
