// LoRA deltas of mixed adapters over one shared base product. Used by Linear and LmHead in layers/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "ops/matrix.h"
#include "ops/modes.h"

namespace shoal {

// One adapter's pair for one linear part, at its own rank: delta = (x A^T) * scale B^T. Undefined: no delta.
// Both keep the dtype of the adapter's file. B is stored transposed, so that any rank packs without padding.
struct LoraPair {
  Tensor a;  // [rank, in]
  Tensor b;  // [rank, out]
  float scale = 0.0F;
};

// A pair as kernels on a device read it. rank 0: no delta.
struct LoraPairRef {
  const void* a = nullptr;
  const void* b = nullptr;
  float scale = 0.0F;
  std::int32_t rank = 0;
  std::int32_t dtype = 0;  // a DType
  std::int32_t unused = 0;
};

// The tokens of one adapter in this step.
struct LoraGroup {
  std::span<const LoraPair> pairs;         // by target id, see lora/adapter_weights.h
  const LoraPairRef* pair_refs = nullptr;  // the same on the device
  std::int64_t token_begin = 0;            // range inside LoraBatch::token_rows
  std::int64_t token_count = 0;
};

// A group as kernels on a device read it.
struct LoraGroupRef {
  const LoraPairRef* pairs = nullptr;
  std::int32_t token_begin = 0;
  std::int32_t token_count = 0;
};

// A step's tokens grouped by adapter; tokens of the base model appear nowhere.
struct LoraBatch {
  std::span<const LoraGroup> groups;
  Tensor token_rows;                              // i32 [adapter tokens]: rows of x, grouped
  std::span<const std::int32_t> host_token_rows;  // the same on the host
  std::int64_t max_rank = 0;                      // over all groups and targets, for scratch
  Tensor group_refs = {};                         // u8: LoraGroupRef [groups], where the device is not the host

  bool empty() const { return groups.empty(); }
};

// One named part of a fused linear layer: which pair of an adapter applies to which output columns.
struct LoraPart {
  std::int32_t target_id = -1;
  std::int64_t column_begin = 0;
  std::int64_t column_count = 0;
};

// The parts of a layer that read the same columns of x: one, unless layers were joined along their inputs.
struct LoraInput {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::vector<LoraPart> parts;
};

namespace ops {

// out = (or +=) x W^T + bias, then lora_add for each input: both products of a layer at once, because a device may run
// them beside each other. Shapes and dtypes as at matmul and lora_add.
void linear(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
            const LoraBatch& batch, std::span<const LoraInput> inputs, const Tensor& out);

// out[t, part columns] += (x[t] A^T) * scale B^T for each part and each token of each group.
// x [tokens, in] activations, out [tokens, all columns] activations, or float32 for logits. Sums in float, in one fixed
// order an output.
void lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
              const Tensor& out);

}  // namespace ops
}  // namespace shoal
