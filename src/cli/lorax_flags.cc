#include "cli/lorax_flags.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "cli/options.h"

namespace shoal {
namespace {

enum class Verdict : std::uint8_t { kIgnored, kRefused };

struct LoraxFlag {
  const char* name;      // "": a variable alone
  const char* variable;  // "": a flag alone
  Verdict verdict;
  const char* but_for;  // the value of a refused one that means what is done anyway; "": none
  const char* reason;
};

constexpr Verdict kIgnored = Verdict::kIgnored;
constexpr Verdict kRefused = Verdict::kRefused;
constexpr const char* kOneRevision = "--model-id is a folder, which holds one";
constexpr const char* kNoCode = "no code of a checkpoint is run";
constexpr const char* kNoQuantizing = "weights are served in the dtype of the checkpoint or of --dtype";
constexpr const char* kSteps = "every step holds decoding sequences and prompts, up to --max-batch-prefill-tokens";
constexpr const char* kGraphs = "graphs are captured on a GPU as steps of a shape come by";
constexpr const char* kMemory = "--kv-cache-memory sets the size of the cache";
constexpr const char* kOneDevice = "one device serves the model";
constexpr const char* kNoRanks = "there are no ranks to meet";
constexpr const char* kNoTunnel = "no tunnel is opened; put a proxy before the server";
constexpr const char* kNoRope = "rotary angles are those of config.json";

// clang-format off
constexpr std::array kFlags = {
    LoraxFlag{"--trust-remote-code", "TRUST_REMOTE_CODE", kRefused, "false", kNoCode},
    LoraxFlag{"--quantize", "QUANTIZE", kRefused, "", kNoQuantizing},
    LoraxFlag{"--sharded", "SHARDED", kRefused, "false", kOneDevice},
    LoraxFlag{"--num-shard", "NUM_SHARD", kRefused, "1", kOneDevice},
    LoraxFlag{"--revision", "REVISION", kRefused, "", kOneRevision},
    LoraxFlag{"--source", "SOURCE", kRefused, "hub", "--model-id is a folder"},
    LoraxFlag{"--download-only", "DOWNLOAD_ONLY", kRefused, "false", "no model is downloaded: --model-id is a folder"},
    LoraxFlag{"--embedding-dim", "EMBEDDING_DIM", kRefused, "", "embeddings are hidden states as they are, without a projection"},
    LoraxFlag{"--adapter-id", "ADAPTER_ID", kRefused, "", "requests name their adapter; --preloaded-adapter-ids keeps it on the device"},
    LoraxFlag{"--merge-adapter-weights", "MERGE_ADAPTER_WEIGHTS", kRefused, "false", "the base model stays as it is"},
    LoraxFlag{"--ngrok", "NGROK", kRefused, "false", kNoTunnel},
    LoraxFlag{"--ngrok-authtoken", "NGROK_AUTHTOKEN", kRefused, "", kNoTunnel},
    LoraxFlag{"--ngrok-edge", "NGROK_EDGE", kRefused, "", kNoTunnel},
    LoraxFlag{"", "ROPE_SCALING", kRefused, "", kNoRope},
    LoraxFlag{"", "ROPE_FACTOR", kRefused, "", kNoRope},
    LoraxFlag{"", "HF_MODEL_TRUST_REMOTE_CODE", kRefused, "false", kNoCode},
    LoraxFlag{"", "HF_MODEL_QUANTIZE", kRefused, "", kNoQuantizing},
    LoraxFlag{"", "HF_MODEL_REVISION", kRefused, "", kOneRevision},
    LoraxFlag{"--weights-cache-override", "WEIGHTS_CACHE_OVERRIDE", kIgnored, "", "--model-id is a folder"},
    LoraxFlag{"--disable-custom-kernels", "DISABLE_CUSTOM_KERNELS", kIgnored, "", "it is about models that are not served"},
    LoraxFlag{"--backend", "BACKEND", kIgnored, "", "each device has one"},
    LoraxFlag{"--master-addr", "MASTER_ADDR", kIgnored, "", kNoRanks},
    LoraxFlag{"--master-port", "MASTER_PORT", kIgnored, "", kNoRanks},
    LoraxFlag{"--shard-uds-path", "SHARD_UDS_PATH", kIgnored, "", kNoRanks},
    LoraxFlag{"--cuda-memory-fraction", "CUDA_MEMORY_FRACTION", kIgnored, "", kMemory},
    LoraxFlag{"--memory-wiggle-room", "MEMORY_WIGGLE_ROOM", kIgnored, "", kMemory},
    LoraxFlag{"--max-batch-total-tokens", "MAX_BATCH_TOTAL_TOKENS", kIgnored, "", kMemory},
    LoraxFlag{"--waiting-served-ratio", "WAITING_SERVED_RATIO", kIgnored, "", kSteps},
    LoraxFlag{"--max-waiting-tokens", "MAX_WAITING_TOKENS", kIgnored, "", kSteps},
    LoraxFlag{"--eager-prefill", "EAGER_PREFILL", kIgnored, "", kSteps},
    LoraxFlag{"--chunked-prefill", "CHUNKED_PREFILL", kIgnored, "", kSteps},
    LoraxFlag{"--predibase-api-token", "PREDIBASE_API_TOKEN", kIgnored, "", "the source pbase is not served"},
    LoraxFlag{"--disable-sgmv", "DISABLE_SGMV", kIgnored, "", "there is no such kernel"},
    LoraxFlag{"--speculative-tokens", "SPECULATIVE_TOKENS", kIgnored, "", "nothing is drafted; answers are the same"},
    LoraxFlag{"--speculation-max-batch-size", "LORAX_SPECULATION_MAX_BATCH_SIZE", kIgnored, "", "nothing is drafted"},
    LoraxFlag{"--compile", "COMPILE", kIgnored, "", kGraphs},
    LoraxFlag{"--eager", "EAGER", kIgnored, "", kGraphs},
    LoraxFlag{"--compile-max-batch-size", "LORAX_COMPILE_MAX_BATCH_SIZE", kIgnored, "", kGraphs},
    LoraxFlag{"--compile-batch-size", "LORAX_COMPILE_BATCH_SIZE", kIgnored, "", kGraphs},
    LoraxFlag{"--compile-max-rank", "LORAX_COMPILE_MAX_RANK", kIgnored, "", kGraphs},
    LoraxFlag{"--otlp-endpoint", "OTLP_ENDPOINT", kIgnored, "", "no traces are sent; x-request-id ties log lines together"},
    LoraxFlag{"-e,--env", "", kIgnored, "", "the log of the start names device and memory, `shoal --version` the version"},
    LoraxFlag{"", "SM_NUM_GPUS", kIgnored, "1", kOneDevice},
    LoraxFlag{"", "HF_MODEL_ID", kIgnored, "", "--model-id (MODEL_ID) names the model's folder"},
    LoraxFlag{"", "REQUEST_LOGGER_URL", kIgnored, "", "no prompts or answers are sent elsewhere"},
};
// clang-format on

bool is_off(const std::string& value) { return value.empty() || value == "false" || value == "0"; }

}  // namespace

void LoraxFlags::add_to(CLI::App& command) {
  given_.resize(kFlags.size());
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    const LoraxFlag& flag = kFlags[i];
    if (*flag.name == '\0') continue;
    // A value or none, since LoRAX has both kinds.
    const auto keep = [this, i](const std::string& value) { given_[i] = value.empty() ? "true" : value; };
    command.add_option_function<std::string>(flag.name, keep, flag.reason)
        ->envname(flag.variable)
        ->expected(0, 1)
        ->group(flag.verdict == kIgnored ? "Flags of LoRAX that do nothing here" : "Flags of LoRAX that are refused");
  }
}

void LoraxFlags::apply() const {
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    const LoraxFlag& flag = kFlags[i];
    std::string name = flag.name;
    std::string value = given_[i];
    if (name.empty()) {
      name = flag.variable;
      const char* set = std::getenv(flag.variable);
      value = set == nullptr ? "" : set;
    }
    name = name.substr(name.find("--") == std::string::npos ? 0 : name.find("--"));
    const bool is_switch = std::string_view(flag.but_for) == "false";
    if (value.empty() || value == flag.but_for || (is_switch && is_off(value))) continue;
    if (flag.verdict == kIgnored) {
      spdlog::warn("{} does nothing here: {}", name, flag.reason);
      continue;
    }
    // Not the value of a token.
    const bool is_secret = name.ends_with("token");
    throw UsageError(fmt::format("{}{} is not served: {}", name, is_secret ? "" : " " + value, flag.reason));
  }
}

}  // namespace shoal
