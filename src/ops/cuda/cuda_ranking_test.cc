// Ranking and biases on the GPU: ids and ranks equal to the reference's, sums within its bound.
#include "ops/ranking.h"

#include <fmt/format.h>

#include <limits>

#include "ops/cuda/cuda_test_util.h"
#include "ops/sampling.h"

namespace shoal {
namespace {

class CudaRanking : public CudaTest {};

TEST_F(CudaRanking, MatchesTheReference) {
  RandomFill random(21);
  for (const std::int64_t vocab : {1, 2, 19, 21, 1023, 1025, 5003, 32064, 256000}) {
    const std::int64_t rows = vocab > 50000 ? 2 : 6;
    HostTensor values = random.tensor(DType::kFloat32, {rows, vocab + 3});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t id = 0; id < vocab + 3; ++id) {
        const float value = row % 2 == 0 ? static_cast<float>(random.integer(-9, 9)) : values.at(row, id) * 9.0F;
        values.set(row, id, id < vocab + 2 ? value : 99.0F);
      }
    }
    HostTensor token_values(DType::kInt64, {rows});
    for (std::int64_t& token : token_values.view().span<std::int64_t>()) token = random.integer(0, vocab);
    for (const std::int64_t num_top : {0, 1, 5, 20}) {
      const Twin logits = twin(values, kOddGuards);
      const Twin tokens = twin(token_values);
      const Twin token_logit = twin(HostTensor(DType::kFloat32, {rows}));
      const Twin rank = twin(HostTensor(DType::kInt32, {rows}));
      const Twin largest = twin(HostTensor(DType::kFloat32, {rows}));
      const Twin log_sum = twin(HostTensor(DType::kFloat32, {rows}));
      const Twin top_ids = twin(HostTensor(DType::kInt32, {rows, num_top}));
      const Twin top_logits = twin(HostTensor(DType::kFloat32, {rows, num_top}));
      for (const Side side : {Side::kDevice, Side::kReference}) {
        ops::rank_logits(ctx(side), logits.on(side), {.summed = vocab + (num_top == 5 ? 2 : 0), .ranked = vocab},
                         tokens.on(side),
                         {.token_logit = token_logit.on(side),
                          .rank = rank.on(side),
                          .largest = largest.on(side),
                          .log_sum = log_sum.on(side),
                          .top_ids = top_ids.on(side),
                          .top_logits = top_logits.on(side)});
      }
      const std::string where = fmt::format("vocab {}, {} top", vocab, num_top);
      for (const Twin* exact : {&token_logit, &rank, &largest, &top_ids, &top_logits}) {
        expect_equal_bits(exact->device.download(), exact->reference, where);
      }
      expect_within(log_sum, {.family = OpFamily::kLogprob}, where);
    }
  }
}

TEST_F(CudaRanking, BiasesAddToTheirRowsAlone) {
  RandomFill random(22);
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kVocab = 4000;
  std::vector<LogitBias> biases;
  std::vector<std::int32_t> begin = {0};
  for (const std::int32_t count : {0, 1, 300, 1024, 7}) {
    for (std::int32_t i = 0; i < count; ++i) {
      const float value = i % 5 == 0 ? -std::numeric_limits<float>::infinity() : random.uniform(-100.0F, 100.0F);
      biases.push_back({.id = static_cast<std::int32_t>(i * 3), .value = value});
    }
    begin.push_back(static_cast<std::int32_t>(biases.size()));
  }
  const Twin logits = twin(random.tensor(DType::kFloat32, {kRows, kVocab}), kOddGuards);
  const Twin bounds = twin(host_values(begin, DType::kInt32));
  const Twin bytes = twin(host_values(biases, DType::kUInt8));
  for (const Side side : {Side::kDevice, Side::kReference}) {
    ops::add_biases(ctx(side), bounds.on(side), bytes.on(side), logits.on(side));
  }
  expect_equal_bits(logits.device.download(), logits.reference, "biases");
}

TEST_F(CudaRanking, WatermarksAddToGreenTokensOfTheirRowsAlone) {
  RandomFill random(23);
  constexpr std::int64_t kRows = 5;
  for (const std::int64_t vocab : {std::int64_t{1}, std::int64_t{4001}, std::int64_t{49'152}}) {
    const Twin logits = twin(random.tensor(DType::kFloat32, {kRows, vocab}), kOddGuards);
    const Twin ids = twin(host_values(std::vector<std::int64_t>{0, 255'999, 7, 49'151}, DType::kInt64));
    const Twin after = twin(host_values(std::vector<std::int64_t>{3, -1, 0, 1, 1}, DType::kInt64));
    const Twin gamma = twin(host_values(std::vector<float>{0.5F, 0.0F, 0.001F, 0.999F, 0.25F}, DType::kFloat32));
    const Twin delta = twin(host_values(std::vector<float>{2.0F, 0.0F, 0.1F, 100.0F, 0.0F}, DType::kFloat32));
    for (const Side side : {Side::kDevice, Side::kReference}) {
      ops::add_watermark(
          ctx(side), {.ids = ids.on(side), .after = after.on(side), .gamma = gamma.on(side), .delta = delta.on(side)},
          logits.on(side));
    }
    expect_equal_bits(logits.device.download(), logits.reference, "watermarks");
  }
}

}  // namespace
}  // namespace shoal
