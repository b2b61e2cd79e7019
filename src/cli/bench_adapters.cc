#include "cli/bench_adapters.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>

#include "weights/safetensors.h"

namespace shoal {
namespace {

bool is_chosen(const std::string& path, const std::string& targets) {
  if (path == "lm_head") return false;
  if (targets == "all") return true;
  constexpr std::array<std::string_view, 7> kQkv{"q_proj", "k_proj", "v_proj", "query_key_value",
                                                 "c_attn", "q_attn", "kv_attn"};
  return std::any_of(kQkv.begin(), kQkv.end(), [&](std::string_view name) { return path.ends_with(name); });
}

// Writes one adapter of random bfloat16 values; returns its bytes.
double write_adapter(const std::filesystem::path& folder, const LoraTargets& targets,
                     const BenchAdapterOptions& options, std::uint64_t seed) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "adapter_config.json")
      << fmt::format(R"({{"peft_type": "LORA", "r": {0}, "lora_alpha": {0}}})", options.rank);
  std::minstd_rand random(static_cast<std::uint32_t>(seed + 1));
  std::vector<std::vector<BFloat16>> storage;
  std::vector<NamedTensor> tensors;
  double bytes = 0.0;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    std::vector<BFloat16>& values = storage.emplace_back(static_cast<std::size_t>(rows * cols));
    for (BFloat16& value : values) value = to_bfloat16(0.02F * (static_cast<float>(random() % 2001) / 1000 - 1));
    tensors.push_back({.name = name, .tensor = Tensor(values.data(), DType::kBFloat16, {rows, cols})});
    bytes += static_cast<double>(values.size() * sizeof(BFloat16));
  };
  for (std::int32_t id = 0; id < targets.size(); ++id) {
    const LoraTarget& target = targets.at(id);
    if (!is_chosen(target.path, options.targets)) continue;
    add("base_model.model." + target.path + ".lora_A.weight", options.rank, target.in_features);
    add("base_model.model." + target.path + ".lora_B.weight", target.out_features, options.rank);
  }
  write_safetensors((folder / "adapter_model.safetensors").string(), tensors);
  return bytes;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "shoal-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw StartError(fmt::format("{} cannot be made", name));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

BenchAdapters::BenchAdapters(Session& session, const BenchAdapterOptions& options) {
  for (std::int64_t i = 0; i < options.count + options.spares; ++i) {
    const std::filesystem::path path = folder_.path() / fmt::format("adapter-{}", i);
    bytes_each_ = write_adapter(path, session.engine().lora_targets(), options, static_cast<std::uint64_t>(i));
    const AdapterKey key{.id = path.string()};
    if (i < options.count) {
      slots_.push_back(session.keep_adapter(key).slot);
    } else {
      spares_.push_back(key);
    }
  }
}

double BenchAdapters::bytes_read(std::int64_t batch) const {
  return bytes_each_ * static_cast<double>(std::min(batch, static_cast<std::int64_t>(slots_.size())));
}

AdapterExchange::~AdapterExchange() {
  if (ticket_.has_value()) engine_.release_adapter(*ticket_);
}

void AdapterExchange::turn() {
  if (ticket_.has_value()) {
    const TierState state = engine_.adapter_state(*ticket_);
    if (state == TierState::kMoving) return;
    if (state == TierState::kFailed) throw StartError(engine_.adapter_error(*ticket_).message);
    if (state == TierState::kNoRoom) throw StartError("no room for one more adapter on the device");
    engine_.release_adapter(*ticket_);
  }
  const AdapterKey& key = spares_[static_cast<std::size_t>(next_) % spares_.size()];
  ticket_ = engine_.want_adapter(key, engine_.adapter_version(key), {.priority = 0, .arrival = next_++});
}

}  // namespace shoal
