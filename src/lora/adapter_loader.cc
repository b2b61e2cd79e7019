// Reads a PEFT folder into AdapterWeights. Every tensor of the file must find its module, whole.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <new>

#include "lora/adapter_check.h"
#include "lora/adapter_digest.h"
#include "lora/adapter_files.h"
#include "lora/adapter_weights.h"
#include "lora/peft_config.h"
#include "weights/safetensors.h"
#include "weights/start_error.h"
#include "weights/tensor_values.h"

namespace shoal {
namespace {

constexpr std::int64_t kLargestRank = 256;
constexpr std::size_t kNamesInMessage = 8;

// The two halves of one module, by the names they have in the file.
struct NamedPair {
  std::string a;  // [rank, in]
  std::string b;  // [out, rank]
};

Error invalid(std::string message) { return {.code = ErrorCode::kAdapterInvalid, .message = std::move(message)}; }

std::string list_names(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() < kNamesInMessage) shown.push_back(printable(name));
  }
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (shown.size() < names.size()) text += fmt::format(" and {} more", names.size() - shown.size());
  return text;
}

// "base_model.model.<path>.lora_A[.default].weight" -> path and which half; false for any other name.
bool split_name(std::string_view name, std::string& path, bool& is_a) {
  constexpr std::string_view kPrefix = "base_model.model.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const std::string_view half : {".lora_A", ".lora_B"}) {
    for (const std::string_view tail : {".weight", ".default.weight"}) {
      const std::string suffix = std::string(half) + std::string(tail);
      if (!name.ends_with(suffix)) continue;
      path = name.substr(0, name.size() - suffix.size());
      is_a = half == ".lora_A";
      return true;
    }
  }
  return false;
}

// Pairs by target id; refuses what matches no target, is there twice or has only one half.
Result<std::map<std::int32_t, NamedPair>> match_names(const SafetensorsReader& file, const LoraTargets& targets) {
  std::map<std::int32_t, NamedPair> pairs;
  std::vector<std::string> unmatched;
  for (const auto& [name, info] : file.tensors()) {
    std::string path;
    bool is_a = false;
    std::optional<std::int32_t> target_id;
    if (split_name(name, path, is_a)) target_id = targets.find(path);
    if (!target_id) {
      unmatched.push_back(name);
      continue;
    }
    NamedPair& pair = pairs[*target_id];
    std::string& half = is_a ? pair.a : pair.b;
    if (!half.empty()) return invalid(fmt::format("{} and {} mean the same", half, name));
    half = name;
  }
  if (!unmatched.empty()) {
    return invalid(fmt::format("{} of {} tensors match no linear layer of the base model: {}", unmatched.size(),
                               file.tensors().size(), list_names(unmatched)));
  }
  if (pairs.empty()) return invalid("the adapter holds no tensors");
  std::vector<std::string> halves;
  for (const auto& [target_id, pair] : pairs) {
    if (pair.a.empty() || pair.b.empty()) halves.push_back(pair.a.empty() ? pair.b : pair.a);
  }
  if (!halves.empty()) return invalid(fmt::format("the other half is missing of {}", list_names(halves)));
  return pairs;
}

Status check_pair(const SafetensorsReader& file, const NamedPair& pair, const LoraTarget& target) {
  const TensorInfo& a = *file.find(pair.a);
  const TensorInfo& b = *file.find(pair.b);
  const bool two_dims = a.shape.size() == 2 && b.shape.size() == 2;
  if (!two_dims || a.shape[1] != target.in_features || b.shape[0] != target.out_features || a.shape[0] != b.shape[1]) {
    return invalid(fmt::format("{} is {} and {} is {}, expected [rank, {}] and [{}, rank]", pair.a, a.describe(),
                               pair.b, b.describe(), target.in_features, target.out_features));
  }
  if (a.shape[0] < 1 || a.shape[0] > kLargestRank) {
    return invalid(fmt::format("{} has rank {}, expected 1 to {}", pair.a, a.shape[0], kLargestRank));
  }
  if (!is_float(a.dtype) || a.dtype != b.dtype) {
    return invalid(fmt::format("{} is {} and {} is {}, expected one of float32, bfloat16, float16 for both", pair.a,
                               dtype_name(a.dtype), pair.b, dtype_name(b.dtype)));
  }
  return Ok{};
}

bool all_finite(const Tensor& values) {
  for (const float value : float_values(values)) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// b [rank, out] = source [out, rank] transposed, its rows in the order of the base weight.
void transpose_b(const Tensor& source, const LoraTarget& target, const Tensor& b) {
  const std::int64_t rank = source.dim(1);
  const std::int64_t element_bytes = dtype_bytes(source.dtype());
  const auto* from = static_cast<const std::byte*>(source.raw());
  auto* to = static_cast<std::byte*>(b.raw());
  const std::vector<RowRange> rows = target.row_order.empty() ? identity_rows(target.out_features) : target.row_order;
  std::int64_t column = 0;
  for (const RowRange& range : rows) {
    for (std::int64_t row = range.begin; row < range.begin + range.count; ++row, ++column) {
      for (std::int64_t r = 0; r < rank; ++r) {
        std::memcpy(to + (r * target.out_features + column) * element_bytes, from + (row * rank + r) * element_bytes,
                    static_cast<std::size_t>(element_bytes));
      }
    }
  }
}

std::int64_t aligned_bytes(const TensorInfo& info) { return (info.num_bytes + 15) / 16 * 16; }

// One block of memory for all pairs, then each copied into its place.
Result<AdapterWeights> copy_pairs(const SafetensorsReader& file, const std::map<std::int32_t, NamedPair>& named,
                                  const LoraTargets& targets, const PeftConfig& config, const PlaceAdapter& place) {
  std::int64_t total_bytes = 0;
  for (const auto& [target_id, pair] : named) {
    total_bytes += aligned_bytes(*file.find(pair.a)) + aligned_bytes(*file.find(pair.b));
  }
  std::byte* const storage = place(total_bytes);
  if (storage == nullptr) return invalid(fmt::format("no place for {} bytes", total_bytes));
  std::vector<LoraPair> pairs(static_cast<std::size_t>(targets.size()));
  std::vector<std::byte> b_source;  // as the file has it
  std::int64_t offset = 0;
  for (const auto& [target_id, pair] : named) {
    const LoraTarget& target = targets.at(target_id);
    const TensorInfo& a_info = *file.find(pair.a);
    const std::int64_t rank = a_info.shape[0];
    const TensorInfo& b_info = *file.find(pair.b);
    LoraPair& loaded = pairs[static_cast<std::size_t>(target_id)];
    loaded.a = Tensor(storage + offset, a_info.dtype, {rank, target.in_features});
    offset += aligned_bytes(a_info);
    loaded.b = Tensor(storage + offset, a_info.dtype, {rank, target.out_features});
    offset += aligned_bytes(b_info);
    file.read(a_info, loaded.a.raw());
    b_source.resize(static_cast<std::size_t>(b_info.num_bytes));
    file.read(b_info, b_source.data());
    transpose_b(Tensor(b_source.data(), b_info.dtype, b_info.shape), target, loaded.b);
    if (!all_finite(loaded.a) || !all_finite(loaded.b)) {
      return invalid(fmt::format("{} or {} holds values that are not finite", pair.a, pair.b));
    }
    loaded.scale = config.scale_of(target.path, rank);
    if (!std::isfinite(loaded.scale)) return invalid(fmt::format("lora_alpha of {} is not finite", target.path));
  }
  const AdapterIdentity identity = digest_of(pairs);
  return AdapterWeights(Tensor(storage, DType::kUInt8, {total_bytes}), std::move(pairs), identity);
}

// The pairs of a file that fits the model whole.
Result<std::map<std::int32_t, NamedPair>> match_pairs(const SafetensorsReader& file, const LoraTargets& targets) {
  Result<std::map<std::int32_t, NamedPair>> named = match_names(file, targets);
  if (!named.ok()) return named;
  for (const auto& [target_id, pair] : named.value()) {
    const Status fits = check_pair(file, pair, targets.at(target_id));
    if (!fits.ok()) return fits.error();
  }
  return named;
}

// Clients know adapters by id: where this machine keeps their files is not theirs to read.
Error without_folder(Error error, const std::filesystem::path& directory) {
  const std::string prefix = (directory / "").string();
  for (std::size_t at = 0; (at = error.message.find(prefix, at)) != std::string::npos;) {
    error.message.erase(at, prefix.size());
  }
  return error;
}

// The readers throw for files that cannot be read, the allocator for want of memory; here either is the trouble of
// one request, and an exception that left the loader's thread would end the process.
template <typename Read>
auto errors_as_values(const std::filesystem::path& directory, Read read) -> decltype(read()) {
  try {
    auto result = read();
    if (!result.ok()) return without_folder(result.error(), directory);
    return result;
  } catch (const std::bad_alloc&) {
    return invalid("not enough memory");
  } catch (const std::exception& error) {
    return without_folder(invalid(error.what()), directory);
  }
}

}  // namespace

Result<AdapterWeights> load_adapter(const std::filesystem::path& directory, const LoraTargets& targets,
                                    const PlaceAdapter& place) {
  return errors_as_values(directory, [&]() -> Result<AdapterWeights> {
    Result<PeftConfig> config = read_peft_config(directory);
    if (!config.ok()) return config.error();
    const SafetensorsReader file((directory / kAdapterWeightsFile).string());
    Result<std::map<std::int32_t, NamedPair>> named = match_pairs(file, targets);
    if (!named.ok()) return named.error();
    return copy_pairs(file, named.value(), targets, config.value(), place);
  });
}

Status check_adapter(const std::filesystem::path& directory, const LoraTargets& targets) {
  return errors_as_values(directory, [&]() -> Status {
    const Result<PeftConfig> config = read_peft_config(directory);
    if (!config.ok()) return config.error();
    const Result<std::map<std::int32_t, NamedPair>> named =
        match_pairs(SafetensorsReader((directory / kAdapterWeightsFile).string()), targets);
    if (!named.ok()) return named.error();
    return Ok{};
  });
}

}  // namespace shoal
