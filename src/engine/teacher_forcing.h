// Teacher forcing: logits of given tokens through the engine that serves, whole, in chunks, or one token at a time.
// Used by `shoal logits` and the parity tests.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/block_allocator.h"
#include "core/block_size.h"
#include "engine/engine.h"

namespace shoal {

struct TeacherForcingOptions {
  std::int64_t chunk = 0;         // prefill each sequence in pieces of this many tokens; 0: whole
  std::int64_t decode_from = -1;  // prefill this many tokens, then one at a time; -1: all prefill
  BlockOrder block_order = BlockOrder::kAscending;
};

struct ForcedSequence {
  std::vector<std::int64_t> input_ids;
  std::int32_t adapter = -1;  // an AdapterHandle's slot
};

// Gets the logits of consecutive tokens of one sequence: float32 [tokens, vocab], valid during the call.
using LogitsSink = std::function<void(std::size_t sequence, std::int64_t first_position, const Tensor& logits)>;

// All sequences run as one batch, each taking its next piece in every step. Throws StartError when the cache cannot
// hold them all.
void run_teacher_forcing(Engine& engine, const std::vector<ForcedSequence>& sequences,
                         const TeacherForcingOptions& options, const LogitsSink& sink);

}  // namespace shoal
