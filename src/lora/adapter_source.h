// AdapterSource: where adapters come from. Implemented in hub/, handed to the engine by cli/.
#pragma once

#include <filesystem>
#include <span>

#include "core/adapter_key.h"
#include "core/result.h"

namespace shoal {

class AdapterSource {
 public:
  virtual ~AdapterSource() = default;
  // The folder that holds adapter_config.json and the safetensors of `key`. Runs on a loader thread and may block.
  // Errors: kAdapterNotFound (names the id), kAdapterInvalid (not allowed, unknown source).
  virtual Result<std::filesystem::path> fetch(const AdapterKey& key) = 0;
  // What lies there now, by a look at the files alone; any thread, throws
  // nothing. Zeros where fetch() would refuse.
  virtual AdapterVersion version(const AdapterKey& key) = 0;
};

// For sources whose adapters lie on a disk of this machine.
AdapterVersion version_of_folder(const std::filesystem::path& folder);

// Of what is merged of these: another one when any of them is; zeros where one has zeros.
AdapterVersion version_of_merge(std::span<const AdapterVersion> members);

}  // namespace shoal
