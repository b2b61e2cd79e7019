#include <fmt/core.h>

#include <array>

#include "core/result.h"
#include "models/causal_lm.h"

namespace shoal {
namespace {

struct Architecture {
  std::string_view name;
  std::string_view known_as;
  ModelInfo (*read_info)(const ConfigReader& config);
  std::unique_ptr<CausalLm> (*load)(const ConfigReader& config, LoadContext& load);
};

constexpr std::array<Architecture, 7> kArchitectures{{
    {"LlamaForCausalLM", "Llama", read_solar_info, load_solar},
    {"SolarForCausalLM", "Solar", read_solar_info, load_solar},
    {"FalconForCausalLM", "Falcon", read_rw_info, load_rw},
    {"RWForCausalLM", "Falcon (RefinedWeb)", read_rw_info, load_rw},
    {"GPTBigCodeForCausalLM", "StarCoder (GPTBigCode)", read_santacoder_info, load_santacoder},
    {"GPT2LMHeadCustomModel", "SantaCoder", read_santacoder_info, load_santacoder},
    {"CohereForCausalLM", "Cohere Command", read_cohere_info, load_cohere},
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

ModelInfo read_model_info(const ConfigReader& config) {
  const Architecture& architecture = find_architecture(config);
  ModelInfo info = architecture.read_info(config);
  info.name = architecture.known_as;
  return info;
}

std::unique_ptr<CausalLm> load_model(const ConfigReader& config, LoadContext& load) {
  std::unique_ptr<CausalLm> model = find_architecture(config).load(config, load);
  load.weights.finish();
  return model;
}

}  // namespace shoal
