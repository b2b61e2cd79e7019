// Attention of many query tokens: a block takes kRows query rows of one sequence and KV head (the heads of a group are
// rows too, so any group size fills the tiles), and walks over its keys in shared tiles, loading the next one
// meanwhile.
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/cuda_error.h"

namespace shoal::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = kWarps * 16;
constexpr int kThreads = kWarps * kWarp;

template <int kDim>
constexpr int kTileKeys = kDim <= 128 ? 64 : 32;

template <typename T, int kDim>
__device__ void load_keys(const AttentionArgs& args, T* key_tile, T* value_tile, const std::int32_t* table, int kv_head,
                          int first_key, int begin, int end) {
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys<kDim> * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const int key = first_key + row;
    const bool valid = key >= begin && key < end;  // others may lie in blocks that are nobody's
    const std::int64_t offset = valid ? cache_row(args, table, key, kv_head) + chunk * 8 : 0;
    copy_async(tile_chunk<T, kDim>(key_tile, row, chunk), static_cast<const T*>(args.key_cache) + offset, valid);
    copy_async(tile_chunk<T, kDim>(value_tile, row, chunk), static_cast<const T*>(args.value_cache) + offset, valid);
  }
  copy_async_commit();
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(AttentionArgs args) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kKeys = kTileKeys<kDim>;
  T* query_tile = reinterpret_cast<T*>(memory);
  T* tiles = query_tile + kRows * kDim;  // two stages of keys, then values
  const auto key_tile = [&](int stage) { return tiles + stage * 2 * kKeys * kDim; };
  const auto value_tile = [&](int stage) { return key_tile(stage) + kKeys * kDim; };

  const int sequence = args.first_sequence + static_cast<int>(blockIdx.z);
  const int num_rows = args.query_lengths[sequence] * args.group;
  // The last rows see the most keys: they start first.
  const int row_tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int first_row = row_tile * kRows;
  if (first_row >= num_rows) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int cached = args.cached[sequence];
  const std::int64_t first_token = args.cu_query[sequence];
  const std::int32_t* table = args.block_tables + sequence * args.table_stride;

  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = first_row + i / kChunks;
    const bool valid = row < num_rows;
    const int token = valid ? row / args.group : 0;
    const int head = kv_head * args.group + (valid ? row % args.group : 0);
    const std::int64_t source = (first_token + token) * args.query_stride + head * kDim;
    stage_query(tile_chunk<T, kDim>(query_tile, i / kChunks, i % kChunks), args, source + i % kChunks * 8, valid);
  }

  const int lowest = cached + first_row / args.group;
  const int highest = cached + (min(first_row + kRows, num_rows) - 1) / args.group;
  const int begin = args.sliding_window > 0 ? max(0, lowest - args.sliding_window + 1) : 0;
  const int end = highest + 1;
  const int first_tile = begin / kKeys;
  const int num_tiles = (end + kKeys - 1) / kKeys - first_tile;
  load_keys<T, kDim>(args, key_tile(0), value_tile(0), table, kv_head, first_tile * kKeys, begin, end);

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  RowPair rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + warp * 16 + lane / 4 + r * 8;
    rows.position[r] = row < num_rows ? cached + row / args.group : -1;
    rows.slope[r] = args.alibi_slopes != nullptr
                        ? args.alibi_slopes[kv_head * args.group + row % args.group] * args.scale * kLog2E
                        : 0.0F;
  }
  T* own_query = query_tile + warp * 16 * kDim;
  RowSums<kDim> sums;
  for (int t = 0; t < num_tiles; ++t) {
    const int first_key = (first_tile + t) * kKeys;
    if (t + 1 < num_tiles) {
      load_keys<T, kDim>(args, key_tile((t + 1) % 2), value_tile((t + 1) % 2), table, kv_head, first_key + kKeys, begin,
                         end);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    float scores[kKeys / 8][4] = {};
    score_keys<T, kDim, kKeys>(scores, key_tile(t % 2),
                               [&](std::uint32_t(&a)[4], int k) { load_query<T, kDim>(a, own_query, k); });
    const bool all_seen = first_key + kKeys - 1 <= lowest && first_row + kRows <= num_rows &&
                          (args.sliding_window == 0 || first_key > highest - args.sliding_window);
    if (all_seen) {
      add_keys<T, kDim, kKeys, false>(sums, scores, value_tile(t % 2), first_key, rows, args);
    } else {
      add_keys<T, kDim, kKeys, true>(sums, scores, value_tile(t % 2), first_key, rows, args);
    }
    __syncthreads();
  }
  finish_totals(sums);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + warp * 16 + lane / 4 + r * 8;
    if (row >= num_rows) continue;
    const float inverse = 1.0F / sums.total[r];
    T* out = static_cast<T*>(args.out) + (first_token + row / args.group) * args.out_stride +
             (kv_head * args.group + row % args.group) * kDim + (lane % 4) * 2;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      *reinterpret_cast<std::uint32_t*>(out + d * 8) =
          pack_two<T>(sums.out[d][2 * r] * inverse, sums.out[d][2 * r + 1] * inverse);
    }
  }
}

template <typename T, int kDim>
void launch(const AttentionArgs& args, std::int64_t max_query, cudaStream_t stream) {
  constexpr int kBytes = (kRows + 4 * kTileKeys<kDim>)*kDim * static_cast<int>(sizeof(T));
  static const cudaError_t kRaised =
      cudaFuncSetAttribute(prefill_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  CUDA_CHECK(kRaised);
  const dim3 grid(blocks_for(max_query * args.group, kRows), static_cast<unsigned>(args.kv_heads),
                  static_cast<unsigned>(args.num_sequences));
  prefill_kernel<T, kDim><<<grid, kThreads, kBytes, stream>>>(args);
  CUDA_CHECK(cudaGetLastError());
}

template <typename T>
void launch_of_type(const AttentionArgs& args, std::int64_t max_query, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64>(args, max_query, stream);
    case 128:
      return launch<T, 128>(args, max_query, stream);
    case 256:
      return launch<T, 256>(args, max_query, stream);
    default:
      CHECK(false);
  }
}

}  // namespace

void launch_prefill_attention(const AttentionArgs& args, DType dtype, std::int64_t max_query, cudaStream_t stream) {
  if (dtype == DType::kBFloat16) {
    launch_of_type<__nv_bfloat16>(args, max_query, stream);
  } else {
    launch_of_type<__half>(args, max_query, stream);
  }
}

}  // namespace shoal::cuda
