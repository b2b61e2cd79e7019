#include "equality/trained_model.h"

#include <algorithm>

#include "equality/workload.h"

namespace shoal {

Result<std::filesystem::path> NamedFolders::fetch(const AdapterKey& key) {
  return adapters_ / folder_of_adapter(key.id);
}

AdapterVersion NamedFolders::version(const AdapterKey& key) { return version_of_folder(fetch(key).value()); }

std::int64_t NamedFolders::largest_file_bytes() const {
  std::uintmax_t largest = 0;
  for (const auto& folder : std::filesystem::directory_iterator(adapters_)) {
    largest = std::max(largest, std::filesystem::file_size(folder.path() / "adapter_model.safetensors"));
  }
  return static_cast<std::int64_t>(largest);
}

}  // namespace shoal
