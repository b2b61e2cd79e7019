#include "ops/lora.h"

#include "ops/backend.h"
#include "ops/matmul.h"
#include "ops/op_checks.h"

namespace shoal::ops {
namespace {

using op_checks::check_activations;
using op_checks::check_contiguous;
using op_checks::kAnyExtent;

void check_pair(const LoraPair& pair, const LoraPart& part, std::int64_t num_inputs, std::int64_t max_rank) {
  CHECK_EQ(pair.a.defined(), pair.b.defined());
  if (!pair.a.defined()) return;
  CHECK(is_float(pair.a.dtype()));
  check_contiguous(pair.a, pair.a.dtype(), {kAnyExtent, num_inputs});
  check_contiguous(pair.b, pair.a.dtype(), {pair.a.dim(0), part.column_count});
  CHECK_LE(pair.a.dim(0), max_rank);
}

void check_parts(std::span<const LoraPart> parts, std::int64_t num_columns) {
  for (const LoraPart& part : parts) {
    CHECK_GE(part.target_id, 0);
    CHECK_GE(part.column_begin, 0);
    CHECK_GE(part.column_count, 0);
    CHECK_LE(part.column_begin + part.column_count, num_columns);
  }
}

// False where there is nothing to add.
bool check_deltas(const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts, const Tensor& out) {
  check_activations(x, {kAnyExtent, kAnyExtent});
  check_activations(out, {x.dim(0), kAnyExtent});
  if (out.dtype() != DType::kFloat32) CHECK_EQ(dtype_name(x.dtype()), dtype_name(out.dtype()));
  if (x.dim(0) == 0 || batch.empty() || parts.empty()) return false;
  CHECK(!op_checks::overlap(x, out));
  check_parts(parts, out.dim(1));
  check_contiguous(batch.token_rows, DType::kInt32, {std::ssize(batch.host_token_rows)});
  for (const std::int32_t row : batch.host_token_rows) {
    CHECK_GE(row, 0);
    CHECK_LT(std::int64_t{row}, x.dim(0));
  }
  for (const LoraGroup& group : batch.groups) {
    CHECK_GE(group.token_begin, 0);
    CHECK_GE(group.token_count, 0);
    CHECK_LE(group.token_begin + group.token_count, std::ssize(batch.host_token_rows));
    for (const LoraPart& part : parts) {
      CHECK_LT(std::int64_t{part.target_id}, std::ssize(group.pairs));
      check_pair(group.pairs[static_cast<std::size_t>(part.target_id)], part, x.dim(1), batch.max_rank);
    }
  }
  return true;
}

}  // namespace

void lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
              const Tensor& out) {
  if (check_deltas(x, batch, parts, out)) ctx.backend.lora_add(ctx, x, batch, parts, out);
}

void linear(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
            const LoraBatch& batch, std::span<const LoraInput> inputs, const Tensor& out) {
  bool any = false;
  for (const LoraInput& input : inputs) {
    any = check_deltas(x.columns(input.begin, input.count), batch, input.parts, out) || any;
  }
  op_checks::check_matmul(ctx, x, weight, bias, out);
  if (any && ctx.backend.linear(ctx, x, weight, bias, mode, batch, inputs, out)) return;
  matmul(ctx, x, weight, bias, mode, out);
  for (const LoraInput& input : inputs) {
    lora_add(ctx, x.columns(input.begin, input.count), batch, input.parts, out);
  }
}

}  // namespace shoal::ops
