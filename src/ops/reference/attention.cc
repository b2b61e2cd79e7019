#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference/float_access.h"
#include "ops/reference/reference_backend.h"

namespace shoal {
namespace {

// Where the head of one key of one sequence begins in a cache of this shape, in elements.
std::int64_t cache_offset(const Tensor& cache, const std::int32_t* block_table, std::int64_t position,
                          std::int64_t kv_head) {
  const std::int64_t slot = block_table[position / kBlockSize] * kBlockSize + position % kBlockSize;
  return (slot * cache.dim(2) + kv_head) * cache.dim(3);
}

// One query head at `position` over the keys it sees: softmax(scores) V, in two passes.
// query, out [head_dim]; block_table [max_blocks].
void attend(const AttentionInput& in, const std::int32_t* block_table, std::int64_t position, std::int64_t head,
            const float* query, float* out) {
  const std::int64_t head_dim = in.key_cache.dim(3);
  const std::int64_t kv_head = head / (in.query.dim(1) / in.key_cache.dim(2));
  const std::int64_t first = in.sliding_window > 0 ? std::max<std::int64_t>(0, position - in.sliding_window + 1) : 0;
  const double slope = in.alibi_slopes.defined() ? double{in.alibi_slopes.data<float>()[head]} : 0.0;

  std::vector<double> weights;  // [position + 1 - first]: scores, then their exponentials
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = first; j <= position; ++j) {
    const std::int64_t offset = cache_offset(in.key_cache, block_table, j, kv_head);
    double dot = 0.0;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      dot += double{query[i]} * double{read_float(in.key_cache.raw(), in.key_cache.dtype(), offset + i)};
    }
    weights.push_back((dot + slope * static_cast<double>(j)) * double{in.scale});
    largest = std::max(largest, weights.back());
  }

  double total = 0.0;
  std::vector<double> sum(static_cast<std::size_t>(head_dim), 0.0);
  for (std::int64_t j = first; j <= position; ++j) {
    const double weight = std::exp(weights[static_cast<std::size_t>(j - first)] - largest);
    const std::int64_t offset = cache_offset(in.value_cache, block_table, j, kv_head);
    total += weight;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      const float value = read_float(in.value_cache.raw(), in.value_cache.dtype(), offset + i);
      sum[static_cast<std::size_t>(i)] += weight * double{value};
    }
  }
  for (std::int64_t i = 0; i < head_dim; ++i) out[i] = static_cast<float>(sum[static_cast<std::size_t>(i)] / total);
}

}  // namespace

void ReferenceBackend::write_cache(Context&, const Tensor& key, const Tensor& value, const Tensor& slots,
                                   const Tensor& key_cache, const Tensor& value_cache) const {
  const std::int64_t token_elements = key.row_elements();
  for (std::int64_t t = 0; t < key.dim(0); ++t) {
    const std::int64_t offset = slots.data<std::int64_t>()[t] * token_elements;
    for (std::int64_t i = 0; i < token_elements; ++i) {
      write_float(key_cache.raw(), key_cache.dtype(), offset + i, key.row<float>(t)[i]);
      write_float(value_cache.raw(), value_cache.dtype(), offset + i, value.row<float>(t)[i]);
    }
  }
}

void ReferenceBackend::attention(Context&, const AttentionInput& in, const Tensor& out) const {
  const std::int64_t head_dim = in.query.dim(2);
  for (std::int64_t s = 0; s < in.seqlen.num_sequences(); ++s) {
    const auto index = static_cast<std::size_t>(s);
    const std::int64_t first_token = in.seqlen.host_cu_query[index];
    for (std::int64_t i = 0; i < in.seqlen.host_query[index]; ++i) {
      const std::int64_t position = in.seqlen.host_cached[index] + i;
      for (std::int64_t head = 0; head < in.query.dim(1); ++head) {
        attend(in, in.block_tables.row<std::int32_t>(s), position, head,
               in.query.row<float>(first_token + i) + head * head_dim,
               out.row<float>(first_token + i) + head * head_dim);
      }
    }
  }
}

}  // namespace shoal
