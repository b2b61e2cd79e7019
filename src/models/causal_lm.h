// CausalLm: a loaded model behind the forward contract. Made by the registry, run by the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "layers/forward_input.h"
#include "layers/load_context.h"
#include "weights/config_reader.h"

namespace shoal {

enum class PositionLimit : std::uint8_t {
  kTable,   // learned positions end at max_positions, whatever is asked
  kConfig,  // the config's length, which a caller may exceed on purpose
};

// What config.json says of the sizes that others plan with.
struct ModelInfo {
  std::string family;     // "solar", "rw", "santacoder", "cohere"
  std::string name = {};  // as people know it: "Llama", "Falcon (RefinedWeb)"; set by the registry
  std::int64_t num_layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t sliding_window = 0;  // tokens that a query sees in every layer; 0: all
  PositionLimit position_limit = PositionLimit::kConfig;
};

class CausalLm {
 public:
  virtual ~CausalLm() = default;

  virtual ForwardOutput forward(Context& ctx, const ForwardInput& in) const = 0;
  // Logits of hidden states that a forward with skip_lm_head returned, scaled where the family scales them:
  // hidden [rows, hidden] activations, `lora` grouped over these rows -> float32 [rows, vocab].
  virtual Tensor lm_head(Context& ctx, const Tensor& hidden, const LoraBatch& lora) const = 0;
};

// The family of a config.json by `architectures` and `model_type`; StartError names what it does not know.
ModelInfo read_model_info(const ConfigReader& config);
// Reads the weights of that model; StartError when any is missing, misshapen or left over.
std::unique_ptr<CausalLm> load_model(const ConfigReader& config, LoadContext& load);

// --- the families, one file each; called by the registry ---
ModelInfo read_solar_info(const ConfigReader& config);
std::unique_ptr<CausalLm> load_solar(const ConfigReader& config, LoadContext& load);
ModelInfo read_rw_info(const ConfigReader& config);
std::unique_ptr<CausalLm> load_rw(const ConfigReader& config, LoadContext& load);
ModelInfo read_santacoder_info(const ConfigReader& config);
std::unique_ptr<CausalLm> load_santacoder(const ConfigReader& config, LoadContext& load);
ModelInfo read_cohere_info(const ConfigReader& config);
std::unique_ptr<CausalLm> load_cohere(const ConfigReader& config, LoadContext& load);

}  // namespace shoal
