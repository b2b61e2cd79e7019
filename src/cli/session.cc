#include "cli/session.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <thread>

#include "engine/pin_adapter.h"

namespace shoal {

namespace fs = std::filesystem;

ModelInfo read_model(const ModelOptions& options, const char* flag) {
  const fs::path path(options.model_id);
  if (path.empty()) throw UsageError(fmt::format("{} is missing", flag));
  const bool is_folder = fs::is_directory(path);
  const bool is_config = options.load_format == "dummy" && fs::is_regular_file(path);
  if (!is_folder && !is_config) {
    throw UsageError(fmt::format(
        "{} is {}, which is no folder; expected one with a Hugging Face checkpoint on this disk", flag, path.string()));
  }
  return read_model_info(ConfigReader::from_file((is_folder ? path / "config.json" : path).string()));
}

void check_positions(const std::string& flag, std::int64_t wanted_positions, const ModelInfo& model) {
  constexpr std::int64_t kMostTimes = 16;  // what rope scaling is used for, and tables that fit in memory
  const bool table = model.position_limit == PositionLimit::kTable;
  const std::int64_t most = table ? model.max_positions : kMostTimes * model.max_positions;
  if (wanted_positions > most) {
    const std::string reason = table ? "the model's table of positions ends there"
                                     : fmt::format("{} times the model's {}", kMostTimes, model.max_positions);
    throw UsageError(
        fmt::format("{} asks for {} positions, expected at most {}: {}", flag, wanted_positions, most, reason));
  }
  if (wanted_positions > model.max_positions) {
    spdlog::warn("{} asks for {} positions, the model was made for {}: answers that go past them may be poor", flag,
                 wanted_positions, model.max_positions);
  }
}

Result<std::filesystem::path> PathSource::fetch(const AdapterKey& key) {
  const std::filesystem::path folder = adapter_dir_ / key.id;  // an absolute id stands for itself
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return Error{.code = ErrorCode::kAdapterNotFound, .message = fmt::format("{} is no folder", folder.string())};
  }
  return folder;
}

CpuIsa isa_from_environment() {
  const std::vector<CpuIsa> available = available_isas();
  const char* forced = std::getenv("SHOAL_ISA");
  if (forced == nullptr || std::string_view(forced).empty()) return default_isa();
  const std::optional<CpuIsa> isa = isa_from_name(forced);
  if (isa && std::find(available.begin(), available.end(), *isa) != available.end()) return *isa;
  std::vector<std::string_view> names;
  names.reserve(available.size());
  for (const CpuIsa one : available) names.push_back(isa_name(one));
  throw UsageError(fmt::format("SHOAL_ISA is {}, this processor has {}", forced, fmt::join(names, ", ")));
}

bool takes_cuda(const std::string& device) {
  if (!device.empty()) return device == "cuda";
  return std::getenv("SHOAL_ISA") == nullptr && cuda_is_present();
}

std::unique_ptr<Backend> make_backend(const std::string& device, ThreadPool& pool) {
  if (takes_cuda(device)) return make_cuda_backend();
  return make_cpu_backend(isa_from_environment(), pool);
}

Session::Session(const ModelOptions& options, AdapterSource& source, EngineOptions sizes) {
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  pool_ = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : processors);
  backend_ = make_backend(options.device, *pool_);
  sizes.model_path = options.model_id;
  sizes.load_format = options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kCheckpoint;
  sizes.dtype = dtype_from_name(options.dtype);
  sizes.kv_cache_dtype = dtype_from_name(options.kv_cache_dtype);
  if (!options.kv_cache_memory.empty()) {
    sizes.kv_cache_bytes = parse_bytes("--kv-cache-memory", options.kv_cache_memory);
  }
  try {
    engine_ = std::make_unique<ModelEngine>(sizes, *backend_, source, wakeup_);
  } catch (const std::bad_alloc&) {
    throw StartError(fmt::format("not enough memory for {} at {} positions", options.model_id,
                                 std::max(sizes.served_positions, sizes.min_served_positions)));
  }
}

PinnedAdapter Session::keep_adapter(const AdapterKey& key) {
  const Result<HeldAdapter> held = pin_when_ready(*engine_, wakeup_, key, --last_kept_arrival_);
  if (!held.ok()) throw StartError(fmt::format("adapter {}: {}", key.id, held.error().message));
  engine_->keep_adapter(held.value().ticket);
  return held.value().adapter;
}

}  // namespace shoal
