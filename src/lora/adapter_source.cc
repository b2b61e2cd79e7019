#include "lora/adapter_source.h"

#include <sys/stat.h>

#include "lora/adapter_files.h"

namespace shoal {
namespace {

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15U;
  return state ^ (state >> 32);
}

}  // namespace

// Size, inode and both times: a file that was rewritten, replaced by a rename or given back its old time differs.
AdapterVersion version_of_folder(const std::filesystem::path& folder) {
  AdapterVersion version{.signature = 1};
  for (const char* name : {kAdapterConfigFile, kAdapterWeightsFile}) {
    struct stat seen{};
    if (::stat((folder / name).c_str(), &seen) != 0) return {};
    for (const auto value : {static_cast<std::int64_t>(seen.st_size), static_cast<std::int64_t>(seen.st_ino),
                             static_cast<std::int64_t>(seen.st_mtim.tv_sec), seen.st_mtim.tv_nsec,
                             static_cast<std::int64_t>(seen.st_ctim.tv_sec), seen.st_ctim.tv_nsec}) {
      version.signature = mix(version.signature, static_cast<std::uint64_t>(value));
    }
    version.file_bytes = seen.st_size;  // of the weights, which come last
  }
  return version;
}

AdapterVersion version_of_merge(std::span<const AdapterVersion> members) {
  AdapterVersion version{.signature = 2};
  for (const AdapterVersion& member : members) {
    if (member.signature == 0) return {};
    version.signature = mix(version.signature, member.signature);
    version.file_bytes += member.file_bytes;
  }
  return version;
}

}  // namespace shoal
