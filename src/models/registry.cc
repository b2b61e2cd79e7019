#include <fmt/core.h>

#include <array>

#include "core/result.h"
#include "models/causal_lm.h"

namespace shoal {
namespace {

struct Architecture {
  std::string_view name;
  ModelInfo (*read_info)(const ConfigReader& config);
  std::unique_ptr<CausalLm> (*load)(const ConfigReader& config, LoadContext& load);
};

constexpr std::array<Architecture, 7> kArchitectures{{
    {"LlamaForCausalLM", read_solar_info, load_solar},
    {"SolarForCausalLM", read_solar_info, load_solar},
    {"FalconForCausalLM", read_rw_info, load_rw},
    {"RWForCausalLM", read_rw_info, load_rw},
    {"GPTBigCodeForCausalLM", read_santacoder_info, load_santacoder},
    {"GPT2LMHeadCustomModel", read_santacoder_info, load_santacoder},
    {"CohereForCausalLM", read_cohere_info, load_cohere},
}};

const Architecture& find_architecture(const ConfigReader& config) {
  const std::vector<std::string> names = config.optional_string_list("architectures");
  for (const std::string& name : names) {
    for (const Architecture& architecture : kArchitectures) {
      if (architecture.name == name) return architecture;
    }
  }
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  throw StartError(fmt::format("{}: architectures holds {}, expected one of {}", config.file(),
                               names.empty() ? "nothing" : names.front(), known));
}

}  // namespace

ModelInfo read_model_info(const ConfigReader& config) { return find_architecture(config).read_info(config); }

std::unique_ptr<CausalLm> load_model(const ConfigReader& config, LoadContext& load) {
  std::unique_ptr<CausalLm> model = find_architecture(config).load(config, load);
  load.weights.finish();
  return model;
}

}  // namespace shoal
