#include "cli/session.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace shoal {

Result<std::filesystem::path> PathSource::fetch(const AdapterKey& key) {
  const std::filesystem::path folder = adapter_dir_ / key.id;  // an absolute id stands for itself
  if (!std::filesystem::is_directory(folder)) {
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

Session::Session(const ModelOptions& options, AdapterSource& source, EngineOptions sizes) {
  if (options.model_id.empty()) throw UsageError("--model-id is missing");
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  pool_ = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : processors);
  backend_ = make_cpu_backend(isa_from_environment(), *pool_);
  sizes.model_path = options.model_id;
  sizes.load_format = options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kCheckpoint;
  sizes.dtype = dtype_from_name(options.dtype);
  sizes.kv_cache_dtype = dtype_from_name(options.kv_cache_dtype);
  if (!options.kv_cache_memory.empty()) {
    sizes.kv_cache_bytes = parse_bytes("--kv-cache-memory", options.kv_cache_memory);
  }
  engine_ = std::make_unique<ModelEngine>(sizes, *backend_, source, wakeup_);
}

AdapterHandle Session::acquire_adapter(const AdapterKey& key) {
  const AdapterHandle handle = engine_->acquire_adapter(key);
  AdapterStatus status = engine_->adapter_status(handle);
  while (status.state == AdapterState::kLoading) {
    wakeup_.wait();
    status = engine_->adapter_status(handle);
  }
  if (status.state == AdapterState::kFailed) {
    throw StartError(fmt::format("adapter {}: {}", key.id, status.error->message));
  }
  return handle;
}

}  // namespace shoal
