// AdapterWeights: one LoRA adapter in memory that others own, ready for the lora_add op. Made by load_adapter, kept by
// the engine beside that memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "core/adapter_key.h"
#include "core/result.h"
#include "lora/lora_targets.h"
#include "ops/backend.h"

namespace shoal {

class AdapterWeights {
 public:
  // `bytes` [num_bytes] u8 holds all pairs: A [rank, in] and B transposed [rank, out], each at its own rank and in the
  // file's dtype.
  AdapterWeights(const Tensor& bytes, std::vector<LoraPair> pairs, const AdapterIdentity& identity);

  // The same adapter in memory of `backend`: `region` has device_bytes(backend), 16-byte aligned. Where the device is
  // not the host the table that its kernels read lies there too. The copies are done when it returns.
  AdapterWeights copy_to(const Backend& backend, std::byte* region) const;
  std::int64_t device_bytes(const Backend& backend) const;

  std::span<const LoraPair> pairs() const { return pairs_; }   // by target id; undefined where it changes nothing
  const LoraPairRef* pair_refs() const { return pair_refs_; }  // by target id, on the device; null on the host
  const AdapterIdentity& identity() const { return identity_; }
  std::int64_t num_bytes() const { return bytes_.defined() ? bytes_.num_bytes() : 0; }
  std::int64_t num_modules() const { return num_modules_; }
  std::int64_t max_rank() const { return max_rank_; }

 private:
  Tensor bytes_;  // [num_bytes] u8
  std::vector<LoraPair> pairs_;
  const LoraPairRef* pair_refs_ = nullptr;
  AdapterIdentity identity_;
  std::int64_t num_modules_ = 0;
  std::int64_t max_rank_ = 0;
};

// Where an adapter's bytes are to lie, 16-byte aligned; null: nowhere.
using PlaceAdapter = std::function<std::byte*(std::int64_t num_bytes)>;

// Reads a PEFT folder (adapter_config.json, adapter_model.safetensors) for a model with these targets into the memory
// that `place` gives; it is asked once, when the head of the file fits the model.
// Refused with kAdapterInvalid and the names: tensors that match no target, A without B, wrong shapes, ranks outside
// 1-256, values that are not finite, no place, and every PEFT kind other than plain LoRA. Format: PEFT's LoraConfig.
Result<AdapterWeights> load_adapter(const std::filesystem::path& directory, const LoraTargets& targets,
                                    const PlaceAdapter& place);

}  // namespace shoal
