#include "ops/sampling.h"

#include "ops/backend.h"
#include "ops/op_checks.h"

namespace shoal::ops {
namespace {

using op_checks::check_contiguous;
using op_checks::kAnyExtent;

void check_parameters(const SamplingInput& in, std::int64_t num_rows) {
  check_contiguous(in.greedy, DType::kUInt8, {num_rows});
  for (const Tensor* row_values : {&in.temperature, &in.top_p, &in.typical_p, &in.min_p, &in.repetition_penalty,
                                   &in.frequency_penalty, &in.presence_penalty}) {
    check_contiguous(*row_values, DType::kFloat32, {num_rows});
  }
  for (const Tensor* row_values : {&in.top_k, &in.position, &in.count_slot, &in.mask_slot}) {
    check_contiguous(*row_values, DType::kInt32, {num_rows});
  }
  check_contiguous(in.seed, DType::kInt64, {num_rows});
}

// A row that is not greedy divides by its temperature. Only where the parameters are host memory.
void check_temperatures(const Context& ctx, const SamplingInput& in) {
  if (ctx.backend.device() != DeviceKind::kCpu) return;
  for (std::int64_t row = 0; row < in.logits.dim(0); ++row) {
    if (in.greedy.data<std::uint8_t>()[row] == 0) CHECK_GT(in.temperature.data<float>()[row], 0.0F);
  }
}

}  // namespace

void sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) {
  op_checks::check_tensor(in.logits, DType::kFloat32, {kAnyExtent, kAnyExtent});
  const std::int64_t num_rows = in.logits.dim(0);
  CHECK_GT(in.vocab, 0);
  CHECK_LE(in.vocab, in.logits.dim(1));
  check_parameters(in, num_rows);
  check_contiguous(out.token, DType::kInt64, {num_rows});
  check_contiguous(out.logprob, DType::kFloat32, {num_rows});
  if (in.token_counts.defined()) check_contiguous(in.token_counts, DType::kInt32, {kAnyExtent, in.vocab});
  if (in.mask.defined()) check_contiguous(in.mask, DType::kInt32, {kAnyExtent, (in.vocab + 31) / 32});
  if (num_rows == 0) return;
  op_checks::check_values(ctx, in.count_slot, -1, in.token_counts.defined() ? in.token_counts.dim(0) : 0);
  op_checks::check_values(ctx, in.mask_slot, -1, in.mask.defined() ? in.mask.dim(0) : 0);
  check_temperatures(ctx, in);
  ctx.backend.sample(ctx, in, out);
}

void add_biases(Context& ctx, const Tensor& begin, const Tensor& biases, const Tensor& logits) {
  op_checks::check_tensor(logits, DType::kFloat32, {kAnyExtent, kAnyExtent});
  check_contiguous(begin, DType::kInt32, {logits.dim(0) + 1});
  check_contiguous(biases, DType::kUInt8, {kAnyExtent});
  if (logits.dim(0) == 0 || biases.dim(0) == 0) return;
  const std::int64_t num_biases = biases.dim(0) / static_cast<std::int64_t>(sizeof(LogitBias));
  CHECK_EQ(num_biases * static_cast<std::int64_t>(sizeof(LogitBias)), biases.dim(0));
  op_checks::check_values(ctx, begin, 0, num_biases + 1);
  ctx.backend.add_biases(ctx, begin, biases, logits);
}

void count_sampled(Context& ctx, const Tensor& tokens, const Tensor& count_slot, const Tensor& token_counts) {
  check_contiguous(tokens, DType::kInt64, {kAnyExtent});
  check_contiguous(count_slot, DType::kInt32, {tokens.dim(0)});
  check_contiguous(token_counts, DType::kInt32, {kAnyExtent, kAnyExtent});
  if (tokens.dim(0) == 0) return;
  op_checks::check_values(ctx, count_slot, -1, token_counts.dim(0));
  op_checks::check_values(ctx, tokens, -1, token_counts.dim(1));
  ctx.backend.count_sampled(ctx, tokens, count_slot, token_counts);
}

void take_sampled(Context& ctx, const Tensor& sampled, const Tensor& source_rows, const Tensor& ids) {
  check_contiguous(sampled, DType::kInt64, {kAnyExtent});
  check_contiguous(source_rows, DType::kInt32, {kAnyExtent});
  check_contiguous(ids, DType::kInt64, {kAnyExtent});
  CHECK_LE(source_rows.dim(0), ids.dim(0));
  if (source_rows.dim(0) == 0) return;
  op_checks::check_values(ctx, source_rows, -1, sampled.dim(0));
  ctx.backend.take_sampled(ctx, sampled, source_rows, ids);
}

void count_history(Context& ctx, const Tensor& history, std::int64_t prompt_length, const Tensor& counts) {
  check_contiguous(history, DType::kInt64, {kAnyExtent});
  check_contiguous(counts, DType::kInt32, {kAnyExtent});
  CHECK_GE(prompt_length, 0);
  CHECK_LE(prompt_length, history.dim(0));
  ctx.backend.count_history(ctx, history, prompt_length, counts);
}

}  // namespace shoal::ops
