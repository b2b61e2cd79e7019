// AdapterTexts: the Texts of adapters whose folders hold a tokenizer or a chat template. Part of ServerContext.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/adapter_key.h"
#include "core/result.h"
#include "server/texts.h"

namespace shoal {

// Safe to use from several threads at once.
class AdapterTexts {
 public:
  using Found = Result<std::shared_ptr<const Texts>>;
  // Where a local adapter lies; looks at the folder alone.
  using FindFolder = std::function<Result<std::filesystem::path>(const AdapterKey&)>;

  static constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{64} << 20;   // of one file
  static constexpr std::uintmax_t kMaxKeptBytes = std::uintmax_t{256} << 20;  // of files whose Texts are kept
  static constexpr std::size_t kMaxKept = 64;
  static constexpr std::size_t kMaxSeen = 16'384;

  // `vocab_size`: ids that the engine can take. `find_folder` may be empty: no adapter brings anything.
  AdapterTexts(std::shared_ptr<const Texts> base, std::int64_t vocab_size, FindFolder find_folder)
      : base_(std::move(base)), vocab_size_(vocab_size), find_folder_(std::move(find_folder)) {}

  const std::shared_ptr<const Texts>& base() const { return base_; }

  // The base model's where the adapter is none, a merge, not on this machine's disk, not there, or brings nothing.
  // Files are read once, and once for all adapters that have the same; then they are kept, the longest unused leave. A
  // tokenizer with more ids than the model is not used: the base model's is. kAdapterInvalid: a file that cannot be
  // read.
  Found find(const std::optional<AdapterKey>& adapter);
  // Whether find() would read files.
  bool must_read(const AdapterKey& adapter);

 private:
  struct Folder {
    std::filesystem::path path;
    std::string looks;  // path, sizes and times of the files that count
  };
  struct Kept {
    Found texts;
    std::uintmax_t file_bytes = 0;
    std::uint64_t last_use = 0;
  };

  std::optional<Folder> look(const AdapterKey& adapter) const;
  std::optional<Found> find_kept(const std::string& looks);
  Found read(const Folder& folder, const std::string& id);
  Found load(const std::filesystem::path& folder, const std::string& id) const;
  void keep(const std::string& digest, Kept kept);

  const std::shared_ptr<const Texts> base_;
  const std::int64_t vocab_size_;
  const FindFolder find_folder_;
  std::mutex reads_;  // held by the one that reads files; taken before mutex_
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<std::string, std::string> seen_;  // looks -> digest of the files' contents
  std::map<std::string, Kept> kept_;         // by digest
  std::uint64_t clock_ = 0;
};

}  // namespace shoal
