// NoSource: where there are no adapters. Used by tests of the engine.
#pragma once

#include <filesystem>

#include "lora/adapter_source.h"

namespace shoal {

class NoSource final : public AdapterSource {
 public:
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    return Error{ErrorCode::kAdapterNotFound, key.id};
  }
  AdapterVersion version(const AdapterKey&) override { return {}; }
};

}  // namespace shoal
