#include "ops/watermark.h"

#include <algorithm>
#include <array>

#include "ops/backend.h"
#include "ops/op_checks.h"
#include "ops/random.h"

namespace shoal {
namespace {

// Four ids share a block.
std::array<std::uint32_t, 4> words_of(std::int64_t previous, std::int64_t id) {
  const std::uint64_t key = kWatermarkKey * static_cast<std::uint64_t>(previous);
  return philox4x32(key, {static_cast<std::uint32_t>(id / 4), 0U, 0U, 1U});
}

bool below(std::uint32_t word, float gamma) { return static_cast<float>(word >> 8) * 0x1p-24F < gamma; }

}  // namespace

bool is_green(std::int64_t previous, std::int64_t id, float gamma) {
  return below(words_of(previous, id)[static_cast<std::size_t>(id % 4)], gamma);
}

void add_watermark_to_row(std::int64_t previous, float gamma, float delta, std::int64_t begin, std::int64_t end,
                          float* logits) {
  for (std::int64_t first = begin; first < end; first += 4) {
    const std::array<std::uint32_t, 4> words = words_of(previous, first);
    const std::int64_t count = std::min<std::int64_t>(4, end - first);
    for (std::int64_t i = 0; i < count; ++i) {
      if (below(words[static_cast<std::size_t>(i)], gamma)) logits[first + i] += delta;
    }
  }
}

namespace ops {

void add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits) {
  using op_checks::check_contiguous;
  using op_checks::kAnyExtent;
  op_checks::check_tensor(logits, DType::kFloat32, {kAnyExtent, kAnyExtent});
  const std::int64_t num_rows = logits.dim(0);
  check_contiguous(in.ids, DType::kInt64, {kAnyExtent});
  check_contiguous(in.after, DType::kInt64, {num_rows});
  check_contiguous(in.gamma, DType::kFloat32, {num_rows});
  check_contiguous(in.delta, DType::kFloat32, {num_rows});
  if (num_rows == 0) return;
  op_checks::check_values(ctx, in.after, -1, in.ids.dim(0));
  ctx.backend.add_watermark(ctx, in, logits);
}

}  // namespace ops
}  // namespace shoal
