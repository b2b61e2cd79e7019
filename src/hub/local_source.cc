#include "hub/local_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr std::size_t kMaxIdBytes = 512;

Error invalid(const std::string& id, std::string_view what) {
  return {ErrorCode::kAdapterInvalid, fmt::format("adapter '{}' {}", id, what)};
}

// Whatever of `folder` can be read, step by step: the steps of a range-for throw.
std::vector<fs::path> visible_folders(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code unreadable;
    if (entry->path().filename().string().front() != '.' && entry->is_directory(unreadable)) {
      folders.push_back(entry->path());
    }
  }
  return folders;
}

}  // namespace

LocalSource::LocalSource(const fs::path& root) {
  if (root.empty()) return;
  std::error_code error;
  root_ = fs::canonical(root, error);
  if (error) throw StartError(fmt::format("adapter folder {}: {}", root.string(), error.message()));
  if (!fs::is_directory(root_, error)) throw StartError(fmt::format("adapter folder {}: is no folder", root.string()));
}

Result<fs::path> LocalSource::fetch(const AdapterKey& key) {
  const std::string& id = key.id;
  if (key.source != "local") return invalid(id, fmt::format("names the source '{}', which is not local", key.source));
  if (id.empty()) return Error{ErrorCode::kAdapterInvalid, "the adapter id is empty"};
  if (id.size() > kMaxIdBytes) return Error{ErrorCode::kAdapterInvalid, "the adapter id is too long"};
  if (id.find('\0') != std::string::npos) return Error{ErrorCode::kAdapterInvalid, "the adapter id holds a NUL"};
  if (root_.empty()) return invalid(id, "cannot be loaded: no adapter folder was given at start (--adapter-dir)");

  // An absolute id replaces the root in this sum.
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(root_ / id, error);
  if (error) return invalid(id, "is not a usable path");
  if (!resolved.has_filename()) resolved = resolved.parent_path();  // "alpha/"
  if (!is_inside(resolved)) return invalid(id, "lies outside the adapter folder");
  if (!fs::exists(resolved, error))
    return Error{ErrorCode::kAdapterNotFound, fmt::format("adapter '{}' not found", id)};
  if (!fs::is_directory(resolved, error)) return invalid(id, "is not a folder");
  if (!fs::exists(resolved / kConfigFile, error)) {
    return Error{ErrorCode::kAdapterNotFound, fmt::format("adapter '{}' not found: no {}", id, kConfigFile)};
  }
  // Step by step: the steps of a range-for throw, with the whole path in their text.
  fs::directory_iterator entry(resolved, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code broken;
    if (!entry->is_symlink(broken)) continue;
    const fs::path target = fs::weakly_canonical(entry->path(), broken);
    if (broken || !is_inside(target)) {
      return invalid(
          id, fmt::format("has a file that leads outside the adapter folder: {}", entry->path().filename().string()));
    }
  }
  if (error) return invalid(id, fmt::format("cannot be read: {}", error.message()));
  return resolved;
}

AdapterVersion LocalSource::version(const AdapterKey& key) {
  const Result<fs::path> folder = fetch(key);
  return folder.ok() ? version_of_folder(folder.value()) : AdapterVersion();
}

// Below the root, and not the root itself.
bool LocalSource::is_inside(const fs::path& resolved) const {
  const auto [root_end, rest] = std::mismatch(root_.begin(), root_.end(), resolved.begin(), resolved.end());
  return root_end == root_.end() && rest != resolved.end() && !rest->empty();
}

bool LocalSource::holds_adapter(const fs::path& folder) const {
  std::error_code error;
  const fs::path resolved = fs::canonical(folder, error);
  return !error && is_inside(resolved) && fs::exists(resolved / kConfigFile, error);
}

std::vector<std::string> LocalSource::list() const {
  std::vector<std::string> ids;
  if (root_.empty()) return ids;
  for (const fs::path& folder : visible_folders(root_)) {
    const std::string name = folder.filename().string();
    if (holds_adapter(folder)) {
      ids.push_back(name);
    } else {
      for (const fs::path& inner : visible_folders(folder)) {
        if (holds_adapter(inner)) ids.push_back(name + "/" + inner.filename().string());
      }
    }
    if (ids.size() >= kMaxListed) break;
  }
  ids.resize(std::min(ids.size(), kMaxListed));
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace shoal
