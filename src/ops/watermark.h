// A watermark in the choice of tokens: after each token a share of the vocabulary is green and gets a bias. Who knows
// how green tokens are found can tell from ids alone that a text was made so (docs/watermark.md). Used by Sampler.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "ops/modes.h"

namespace shoal {

inline constexpr std::uint64_t kWatermarkKey = 15485863;  // a prime, LoRAX's

// Whether `id` is green after `previous`: word id % 4 of the Philox block with key kWatermarkKey * previous and counter
// (id / 4, 0, 0, 1), as a uniform number of 24 bits, lies below gamma. The same on every device; ids not negative.
bool is_green(std::int64_t previous, std::int64_t id, float gamma);

struct WatermarkInput {
  Tensor ids;    // i64 [tokens], not negative
  Tensor after;  // i64 [rows]: the index in ids of the token before the one that is chosen; -1: no watermark
  Tensor gamma;  // f32 [rows], in (0, 1): the share of green tokens
  Tensor delta;  // f32 [rows]: what is added to their logits
};

namespace ops {

// logits f32 [rows, width]: to each row with a watermark delta is added where the id is green.
void add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits);

}  // namespace ops

// Columns [begin, end) of one row, whose token before is `previous`. For backends that compute on the host; begin is a
// multiple of 4.
void add_watermark_to_row(std::int64_t previous, float gamma, float delta, std::int64_t begin, std::int64_t end,
                          float* logits);

}  // namespace shoal
