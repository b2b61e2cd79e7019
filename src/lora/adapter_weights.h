// AdapterWeights: one LoRA adapter in memory, ready for the lora_add op. Made by load_adapter, owned by the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/result.h"
#include "lora/lora_targets.h"
#include "ops/backend.h"

namespace shoal {

class AdapterWeights {
 public:
  // All pairs in one block of memory: A [rank, in] and B transposed [rank, out], each at its own rank and in the
  // file's dtype.
  AdapterWeights(Buffer storage, std::vector<LoraPair> pairs);
  // The same adapter in the memory of `backend`, with the table that its kernels read; itself where the device is the
  // host. The copies are done when it returns.
  AdapterWeights on_device(const Backend& backend) &&;

  std::span<const LoraPair> pairs() const { return pairs_; }  // by target id; undefined where it changes nothing
  const LoraPairRef* pair_refs() const { return static_cast<const LoraPairRef*>(refs_storage_.raw()); }  // or null
  std::int64_t num_bytes() const { return storage_.num_bytes(); }
  std::int64_t num_modules() const { return num_modules_; }
  std::int64_t max_rank() const { return max_rank_; }

 private:
  Buffer storage_;
  Buffer refs_storage_;  // LoraPairRef by target id, on a device that is not the host
  std::vector<LoraPair> pairs_;
  std::int64_t num_modules_ = 0;
  std::int64_t max_rank_ = 0;
};

// Reads a PEFT folder (adapter_config.json, adapter_model.safetensors) for a model with these targets.
// Refused with kAdapterInvalid and the names: tensors that match no target, A without B, wrong shapes, ranks outside
// 1-256, values that are not finite, and every PEFT kind other than plain LoRA. Format: PEFT's LoraConfig.
Result<AdapterWeights> load_adapter(const std::filesystem::path& directory, const LoraTargets& targets,
                                    const Allocator& allocator);

}  // namespace shoal
