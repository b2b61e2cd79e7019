// LocalSource: adapters in folders below one allowed root (--adapter-dir). Handed to the engine by cli/, which also
// gives its list to the server.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora/adapter_source.h"

namespace shoal {

// Safe to use from several threads at once.
class LocalSource final : public AdapterSource {
 public:
  // An empty `root` serves nothing. Throws StartError when `root` is no folder.
  explicit LocalSource(const std::filesystem::path& root);

  // `key.id` is a path below the root, or an absolute one that leads there. Symbolic links are followed first: what
  // ends outside the root is kAdapterInvalid, whether it exists or not, and so is a folder whose files do. Texts
  // never tell paths that the client did not send.
  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override;

  // Ids of the folders that hold adapter_config.json, `name` and `org/name`; sorted, at most kMaxListed.
  std::vector<std::string> list() const;
  static constexpr std::size_t kMaxListed = 10'000;

  const std::filesystem::path& root() const { return root_; }  // resolved; empty: nothing is served

 private:
  bool is_inside(const std::filesystem::path& resolved) const;
  bool holds_adapter(const std::filesystem::path& folder) const;

  std::filesystem::path root_;
};

}  // namespace shoal
