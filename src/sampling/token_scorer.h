// TokenScorer: ranks one token of each logits row and brings the result to the host as scores. Owned by Sampler (for
// what it sampled) and by the engine (for tokens of prompts).
#pragma once

#include <array>
#include <cstdint>

#include "core/buffer.h"
#include "ops/backend.h"
#include "ops/ranking.h"
#include "sampling/sampling_params.h"
#include "sampling/token_score.h"

namespace shoal {

class TokenScorer {
 public:
  // `backend` outlives this. Memory is taken when the first scores are asked for.
  TokenScorer(const Backend& backend, const RankedColumns& columns, std::int64_t max_rows)
      : backend_(backend), columns_(columns), max_rows_(max_rows) {}

  // What a step asked for, by which its results are read.
  struct Shape {
    std::int64_t rows = 0;
    std::int64_t num_top = 0;
    std::size_t place = 0;  // on the host: steps take two in turns
  };

  // Results of `rows` rows come, each with at least `num_top` (<= kMostTopLogits) of the largest logits.
  void prepare(std::int64_t rows, std::int64_t num_top);
  void prepare_none() { shape_.rows = 0; }
  bool is_prepared() const { return shape_.rows > 0; }
  const Shape& shape() const { return shape_; }
  // How many of the largest come: of few different numbers, so that few graphs differ by it.
  std::int64_t num_top() const { return shape_.num_top; }

  // Queues kernels alone: logits float32 [rows, width], tokens i64 [rows], -1 for a row without.
  void rank(Context& ctx, const Tensor& logits, const Tensor& tokens) const;
  // Queues the results' way to the host; they are valid once the stream has passed, until the next prepare() but one.
  void download(Stream stream) const;

  // Of the model's own logits.
  TokenScore model_score(const Shape& shape, std::int64_t row, std::int64_t num_top) const;
  // Of logits that ops::sample left, for the token that it chose with this logprob.
  TokenScore sampled_score(const Shape& shape, std::int64_t row, std::int64_t num_top, const SamplingParams& params,
                           float logprob) const;

 private:
  const Buffer& device_results() const {
    return backend_.device() == DeviceKind::kCpu ? host_results_[shape_.place] : device_results_;
  }

  const Backend& backend_;
  RankedColumns columns_;
  std::int64_t max_rows_;
  Shape shape_;
  std::array<Buffer, 2> host_results_;
  Buffer device_results_;  // none where the device is the host
};

}  // namespace shoal
