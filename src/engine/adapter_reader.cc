#include "engine/adapter_reader.h"

#include <fmt/core.h>

#include <filesystem>
#include <vector>

#include "core/buffer.h"
#include "lora/adapter_merge.h"

namespace shoal {
namespace {

Error of_member(const std::string& id, const Error& error) {
  if (error.message.starts_with("adapter '")) return error;  // the source named it
  return {.code = error.code, .message = fmt::format("adapter '{}': {}", id, error.message)};
}

}  // namespace

AdapterVersion AdapterReader::version(const AdapterKey& key) const {
  if (!key.merge) return source_.version(key);
  std::vector<AdapterVersion> members;
  members.reserve(key.merge->ids.size());
  for (std::size_t i = 0; i < key.merge->ids.size(); ++i) members.push_back(source_.version(member_key(key, i)));
  return version_of_merge(members);
}

Result<AdapterWeights> AdapterReader::read(const AdapterKey& key, const PlaceAdapter& place,
                                           const std::stop_token& stop) const {
  if (key.merge) return read_merge(key, place, stop);
  const Result<std::filesystem::path> folder = source_.fetch(key);
  if (!folder.ok()) return folder.error();
  return load_adapter(folder.value(), targets_, place);
}

Result<AdapterWeights> AdapterReader::read_merge(const AdapterKey& key, const PlaceAdapter& place,
                                                 const std::stop_token& stop) const {
  std::vector<Buffer> memory;
  std::vector<AdapterWeights> members;
  std::int64_t left_bytes = options_.most_member_bytes;
  for (std::size_t i = 0; i < key.merge->ids.size(); ++i) {
    const std::string& id = key.merge->ids[i];
    const Result<std::filesystem::path> folder = source_.fetch(member_key(key, i));
    if (!folder.ok()) return of_member(id, folder.error());
    Result<AdapterWeights> member = load_adapter(folder.value(), targets_, [&](std::int64_t num_bytes) -> std::byte* {
      if (num_bytes > left_bytes) return nullptr;
      left_bytes -= num_bytes;
      return static_cast<std::byte*>(memory.emplace_back(host_allocator(), num_bytes).raw());
    });
    if (!member.ok()) return of_member(id, member.error());
    members.push_back(std::move(member.value()));
  }
  return merge_adapters(members, *key.merge, targets_, place,
                        {.num_threads = options_.num_merge_threads, .stopped = [&] { return stop.stop_requested(); }});
}

}  // namespace shoal
