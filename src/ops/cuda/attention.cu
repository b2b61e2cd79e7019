// Attention: sequences with one query token go to the decode kernel, the others to the prefill kernel; what neither
// takes (float32, unusual head sizes) to the plain one.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "ops/cuda/attention_args.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_error.h"

namespace shoal::cuda {
namespace {

constexpr std::int64_t kKeysPerSplit = 128;  // no split is shorter: two blocks of keys a warp
constexpr std::int64_t kMostSplits = 32;

AttentionArgs make_args(const AttentionInput& in, const Tensor& out) {
  AttentionArgs args{};
  args.query = in.query.raw();
  args.float_query = in.query.dtype() == DType::kFloat32;
  args.out = out.raw();
  args.key_cache = in.key_cache.raw();
  args.value_cache = in.value_cache.raw();
  args.block_tables = in.block_tables.data<std::int32_t>();
  args.cu_query = in.seqlen.cu_query.data<std::int32_t>();
  args.query_lengths = in.seqlen.query.data<std::int32_t>();
  args.cached = in.seqlen.cached.data<std::int32_t>();
  args.alibi_slopes = in.alibi_slopes.defined() ? in.alibi_slopes.data<float>() : nullptr;
  args.query_stride = in.query.row_stride();
  args.out_stride = out.row_stride();
  args.table_stride = in.block_tables.row_stride();
  args.heads = static_cast<int>(in.query.dim(1));
  args.kv_heads = static_cast<int>(in.key_cache.dim(2));
  args.group = args.heads / args.kv_heads;
  args.head_dim = static_cast<int>(in.query.dim(2));
  args.sliding_window = static_cast<int>(in.sliding_window);
  args.scale = in.scale;
  args.num_splits = 1;
  return args;
}

// Enough blocks to fill the GPU about twice, none of fewer than kKeysPerSplit keys.
int choose_splits(const AttentionArgs& args, std::int64_t longest, int multiprocessors) {
  const std::int64_t blocks = static_cast<std::int64_t>(args.num_sequences) * args.kv_heads * ((args.group + 15) / 16);
  const std::int64_t wanted = (2 * multiprocessors + blocks - 1) / blocks;
  const std::int64_t most = std::max<std::int64_t>(1, longest / kKeysPerSplit);
  return static_cast<int>(std::min({wanted, most, kMostSplits}));
}

void log_plain_once(DType activations, std::int64_t head_dim) {
  static const bool kLogged = [&] {
    spdlog::info(
        "attention of {} with head_dim {} takes the plain CUDA kernel: tensor-core kernels take 16-bit "
        "activations and head_dim 64, 128 or 256",
        dtype_name(activations), head_dim);
    return true;
  }();
  (void)kLogged;
}

}  // namespace

bool has_fast_attention(DType activations, DType cache, std::int64_t head_dim) {
  return activations != DType::kFloat32 && activations == cache &&
         (head_dim == 64 || head_dim == 128 || head_dim == 256);
}

std::string_view CudaBackend::attention_kernel(DType activations, DType cache, std::int64_t head_dim) const {
  return has_fast_attention(activations, cache, head_dim) ? "tensor cores" : "plain";
}

void CudaBackend::attention(Context& ctx, const AttentionInput& in, const Tensor& out) const {
  AttentionArgs args = make_args(in, out);
  const DType dtype = out.dtype();
  const std::int64_t sequences = in.seqlen.num_sequences();
  if (!has_fast_attention(dtype, in.key_cache.dtype(), in.query.dim(2))) {
    log_plain_once(dtype, in.query.dim(2));
    args.num_sequences = static_cast<int>(sequences);
    launch_plain_attention(args, dtype, in.key_cache.dtype(), in.query.dim(0), stream_of(ctx));
    return;
  }
  const auto num_decode = static_cast<std::size_t>(in.seqlen.num_decode);
  if (num_decode > 0) {
    const Arena::Scope scope(ctx.arena);
    args.num_sequences = static_cast<int>(num_decode);
    // By the width of the tables, not by the lengths: a captured graph serves them all.
    args.num_splits = choose_splits(args, in.block_tables.dim(1) * kBlockSize, multiprocessors_);
    if (args.num_splits > 1) {
      const std::int64_t rows = in.seqlen.num_decode * args.num_splits * args.heads;
      args.partial_out = ctx.arena.take(DType::kFloat32, {rows, args.head_dim}).data<float>();
      args.partial_stats = ctx.arena.take(DType::kFloat32, {rows, 2}).data<float>();
    }
    launch_decode_attention(args, dtype, stream_of(ctx));
  }
  if (std::ssize(in.seqlen.host_query) > in.seqlen.num_decode) {
    args.first_sequence = static_cast<int>(num_decode);
    args.num_sequences = static_cast<int>(sequences - in.seqlen.num_decode);
    args.num_splits = 1;
    const auto query = in.seqlen.host_query.subspan(num_decode);
    launch_prefill_attention(args, dtype, *std::max_element(query.begin(), query.end()), stream_of(ctx));
  }
}

}  // namespace shoal::cuda
