#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/reference/reference_backend.h"

namespace shoal {

void ReferenceBackend::rank_logits(Context&, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                                   const RankingOutput& out) const {
  const std::int64_t num_top = out.top_ids.dim(1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(columns.ranked));
  for (std::int64_t row = 0; row < logits.dim(0); ++row) {
    const float* values = logits.row<float>(row);
    const std::int64_t token = tokens.data<std::int64_t>()[row];
    std::iota(order.begin(), order.end(), 0);
    const auto is_better = [values](std::int32_t a, std::int32_t b) { return values[a] > values[b]; };
    if (std::none_of(values, values + columns.ranked, [](float value) { return std::isnan(value); })) {
      std::stable_sort(order.begin(), order.end(), is_better);
    }
    const float largest = *std::max_element(values, values + columns.summed);
    double sum = 0.0;
    for (std::int64_t id = 0; id < columns.summed; ++id) sum += std::exp(double{values[id]} - double{largest});
    out.largest.data<float>()[row] = largest;
    out.log_sum.data<float>()[row] = static_cast<float>(std::log(sum));
    out.token_logit.data<float>()[row] = token < 0 ? std::numeric_limits<float>::quiet_NaN() : values[token];
    out.rank.data<std::int32_t>()[row] =
        token < 0 ? 0
                  : 1 + static_cast<std::int32_t>(std::count_if(
                            values, values + columns.ranked, [&](float value) { return value > values[token]; }));
    for (std::int64_t i = 0; i < num_top; ++i) {
      const std::int32_t id = i < columns.ranked ? order[static_cast<std::size_t>(i)] : -1;
      out.top_ids.row<std::int32_t>(row)[i] = id;
      out.top_logits.row<float>(row)[i] = id < 0 ? -std::numeric_limits<float>::infinity() : values[id];
    }
  }
}

}  // namespace shoal
