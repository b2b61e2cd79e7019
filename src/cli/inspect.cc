// `shoal inspect`: what a folder holds and what it needs, without loading it.
#include <fmt/core.h>

#include <filesystem>

#include "cache/kv_cache.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "core/block_size.h"
#include "weights/checkpoint.h"

namespace shoal {
namespace {

constexpr double kGiB = 0x1p30;

void print_adapters(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (std::filesystem::exists(entry.path() / "adapter_config.json")) {
      fmt::print("  {:<16}{}\n", "adapter", entry.path().filename().string());
    }
  }
}

int run_inspect(const std::string& folder) {
  ModelOptions options;
  options.model_id = folder;
  const ModelInfo info = read_model(options, "the folder");
  const ConfigReader config = ConfigReader::from_file((std::filesystem::path(folder) / "config.json").string());
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const DType dtype = default_dtype(config);
  const std::int64_t block_bytes = KvCache::bytes_per_block(
      {.num_layers = info.num_layers, .kv_heads = info.kv_heads, .head_dim = info.head_dim, .dtype = dtype});
  const std::optional<ConfigReader> quantization = config.optional_object("quantization_config");
  const auto weight_bytes = static_cast<double>(checkpoint.total_bytes());
  fmt::print("{}\n", folder);
  fmt::print("  {:<16}{}\n", "family", info.name);
  fmt::print("  {:<16}{}\n", "layers", info.num_layers);
  fmt::print("  {:<16}{} ({} key-value heads of {})\n", "heads", info.heads, info.kv_heads, info.head_dim);
  fmt::print("  {:<16}{}\n", "hidden", info.hidden);
  fmt::print("  {:<16}{}\n", "vocabulary", info.vocab);
  fmt::print("  {:<16}{}\n", "positions", info.max_positions);
  fmt::print("  {:<16}{}\n", "dtype", dtype_name(dtype));
  fmt::print("  {:<16}{}\n", "quantization",
             quantization ? quantization->optional_string("quant_method", "unknown") : "none");
  fmt::print("  {:<16}{:.3f} GiB in {} tensors, {} files\n", "weights", weight_bytes / kGiB, checkpoint.names().size(),
             checkpoint.files().size());
  fmt::print("  {:<16}{} bytes a token\n", "cache", block_bytes / kBlockSize);
  for (const int devices : {1, 2, 4, 8}) {
    fmt::print("  {:<16}{:.3f} GiB of weights on each\n", fmt::format("{} device{}", devices, devices > 1 ? "s" : ""),
               weight_bytes / kGiB / devices);
  }
  print_adapters(folder);
  return 0;
}

}  // namespace

Command add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "family, sizes and memory need of a model folder");
  auto folder = std::make_shared<std::string>();
  command->add_option("folder", *folder, "folder of a Hugging Face checkpoint")->required();
  return [folder] { return run_inspect(*folder); };
}

}  // namespace shoal
