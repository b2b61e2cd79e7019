#include "weights/checkpoint.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "weights/json_text.h"
#include "weights/start_error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxIndexBytes = 256 << 20;
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

// A shard is named by a plain file name: an index must not reach outside its folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::map<std::string, std::string> read_weight_map(const std::string& index_path) {
  const nlohmann::json index =
      parse_json_object(read_text_file(index_path, kMaxIndexBytes), index_path, DuplicateKeys::kRefuse);
  const auto position = index.find("weight_map");
  if (position == index.end() || !position->is_object()) {
    throw_mismatch(index_path, "weight_map",
                   {.found = position == index.end() ? "no such key" : describe_json(*position),
                    .expected = "an object of tensor names to file names"});
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : position->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>())) {
      throw_mismatch(index_path, "tensor " + printable(name),
                     {.found = describe_json(shard), .expected = "the name of a file in the same folder"});
    }
    shard_of.emplace(name, shard.get<std::string>());
  }
  if (shard_of.empty()) {
    throw_mismatch(index_path, "weight_map", {.found = "no tensors", .expected = "at least one"});
  }
  return shard_of;
}

std::string file_name(const SafetensorsFile& file) { return fs::path(file.path()).filename().string(); }

// Index and shards must tell the same story in both directions.
void check_index(const std::string& index_path, const std::map<std::string, std::string>& shard_of,
                 const std::vector<SafetensorsFile>& files) {
  for (const SafetensorsFile& file : files) {
    for (const auto& [name, info] : file.tensors()) {
      const auto position = shard_of.find(name);
      if (position == shard_of.end()) {
        throw_mismatch(
            index_path, "tensor " + printable(name),
            {.found = "it in " + file_name(file) + " but not in weight_map", .expected = "every tensor in weight_map"});
      }
    }
  }
  for (const auto& [name, shard] : shard_of) {
    std::vector<std::string> holders;
    for (const SafetensorsFile& file : files) {
      if (file.has(name)) holders.push_back(file_name(file));
    }
    if (holders.size() == 1 && holders[0] == shard) continue;
    throw_mismatch(index_path, "tensor " + printable(name),
                   {.found = holders.empty() ? "it in no shard" : fmt::format("it in {}", fmt::join(holders, " and ")),
                    .expected = "it in " + printable(shard) + " alone"});
  }
}

std::vector<SafetensorsFile> open_shards(const fs::path& folder) {
  const std::string index_path = (folder / kIndexName).string();
  const std::map<std::string, std::string> shard_of = read_weight_map(index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) {
    if (shards.insert(shard).second && !fs::exists(folder / shard)) {
      throw_mismatch(index_path, "shard " + printable(shard),
                     {.found = "no such file", .expected = "the file that holds tensor " + printable(name)});
    }
  }
  std::vector<SafetensorsFile> files;
  files.reserve(shards.size());
  for (const std::string& shard : shards) files.emplace_back((folder / shard).string());
  check_index(index_path, shard_of, files);
  return files;
}

bool is_pickle(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
}

// The lone file of a folder without the usual names, or a refusal that says what to do.
std::string find_single_file(const fs::path& folder) {
  std::vector<std::string> candidates;
  std::vector<std::string> pickles;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") candidates.push_back(entry.path().filename().string());
    if (is_pickle(entry.path())) pickles.push_back(entry.path().filename().string());
  }
  std::sort(candidates.begin(), candidates.end());
  std::sort(pickles.begin(), pickles.end());
  if (candidates.size() == 1) return candidates[0];
  if (candidates.size() > 1) {
    throw_mismatch(folder.string(), "weights",
                   {.found = fmt::format("{} files ({}) and no index", candidates.size(), fmt::join(candidates, ", ")),
                    .expected = fmt::format("{}, {} or a single *.safetensors", kSingleName, kIndexName)});
  }
  if (!pickles.empty()) {
    // Unpickling runs code from the file, so it is left to the user's own Python.
    throw_mismatch(folder.string(), "weights",
                   {.found = fmt::format("only pickled files ({})", pickles[0]),
                    .expected = "safetensors; convert with: python -c \"from transformers import AutoModelForCausalLM; "
                                "AutoModelForCausalLM.from_pretrained('" +
                                folder.string() + "', torch_dtype='auto').save_pretrained('" + folder.string() +
                                "', safe_serialization=True)\""});
  }
  throw_mismatch(folder.string(), "weights",
                 {.found = "no weight file", .expected = fmt::format("{} or {}", kSingleName, kIndexName)});
}

}  // namespace

Checkpoint::Checkpoint(std::string path, std::vector<SafetensorsFile> files)
    : path_(std::move(path)), files_(std::move(files)) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const auto& [name, info] : files_[i].tensors()) file_of_.emplace(name, i);
  }
}

Checkpoint Checkpoint::open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw_mismatch(folder, "model folder",
                   {.found = "no such folder", .expected = "a folder with config.json and weights"});
  }
  const fs::path base(folder);
  std::vector<SafetensorsFile> files;
  if (fs::exists(base / kSingleName)) {
    files.emplace_back((base / kSingleName).string());
  } else if (fs::exists(base / kIndexName)) {
    files = open_shards(base);
  } else {
    files.emplace_back((base / find_single_file(base)).string());
  }
  return Checkpoint(folder, std::move(files));
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  return has(name) ? &file_of(name).info(name) : nullptr;
}

const SafetensorsFile& Checkpoint::file_of(std::string_view name) const {
  const auto position = file_of_.find(name);
  CHECK(position != file_of_.end());
  return files_[position->second];
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

std::int64_t Checkpoint::total_bytes() const {
  std::int64_t total = 0;
  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, info] : file.tensors()) total += info.num_bytes;
  }
  return total;
}

}  // namespace shoal
