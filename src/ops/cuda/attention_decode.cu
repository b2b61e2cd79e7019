// Attention of one query token a sequence: a block takes up to 16 heads of one KV head and a part of the keys. Each of
// its warps reads cache blocks of its own, two on their way while it works on a third, and all meet at the end. Parts
// of a sequence that several blocks took are merged by a second kernel.
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/launch.cuh"

namespace shoal::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kStages = 3;
constexpr int kKeys = static_cast<int>(kBlockSize);

// Keys of one warp: `block` of the sequence.
template <typename T, int kDim>
__device__ void load_block(const AttentionArgs& args, T* tile, const std::int32_t* table, int kv_head, int block,
                           int begin, int end) {
  constexpr int kChunks = kDim / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = lane; i < kKeys * kChunks; i += kWarp) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const int key = block * kKeys + row;
    const bool valid = key >= begin && key < end;
    const std::int64_t offset = valid ? cache_row(args, table, key, kv_head) + chunk * 8 : 0;
    copy_async(tile_chunk<T, kDim>(tile, row, chunk), static_cast<const T*>(args.key_cache) + offset, valid);
    copy_async(tile_chunk<T, kDim>(tile + kKeys * kDim, row, chunk), static_cast<const T*>(args.value_cache) + offset,
               valid);
  }
}

// Shared memory after the loop: by warp and row, the largest score, the total, then kDim sums. Rows are padded so that
// the lanes of a warp, which hold eight of them, meet different banks.
template <int kDim>
struct Meeting {
  float largest[kWarps][16];
  float total[kWarps][16];
  float weight[kWarps][16];  // of a warp's sums in the whole
  float row_total[16];
  float out[kWarps][16][kDim + 8];
};

__device__ inline void add_scaled(float4& sum, const float4& values, float scale) {
  sum.x += values.x * scale;
  sum.y += values.y * scale;
  sum.z += values.z * scale;
  sum.w += values.w * scale;
}

template <typename T>
__device__ void put_quotient(T* out, const float4& sum, float total) {
  out[0] = from_float<T>(sum.x / total);  // rows of `out` may begin anywhere
  out[1] = from_float<T>(sum.y / total);
  out[2] = from_float<T>(sum.z / total);
  out[3] = from_float<T>(sum.w / total);
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) decode_kernel(AttentionArgs args) {
  extern __shared__ __align__(16) char memory[];
  T* query_tile = reinterpret_cast<T*>(memory);  // [16, kDim]
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  T* tiles = query_tile + 16 * kDim + warp * kStages * 2 * kKeys * kDim;  // of this warp
  const auto tile = [&](int stage) { return tiles + stage * 2 * kKeys * kDim; };

  const int head_tiles = (args.group + 15) / 16;
  const int sequence = args.first_sequence + static_cast<int>(blockIdx.x) / head_tiles;
  const int first_head = static_cast<int>(blockIdx.x) % head_tiles * 16;  // of the group
  const int num_heads = min(16, args.group - first_head);
  const int kv_head = static_cast<int>(blockIdx.y);
  wait_for_inputs();
  const int position = args.cached[sequence];
  const std::int64_t token = args.cu_query[sequence];
  const std::int32_t* table = args.block_tables + sequence * args.table_stride;
  const int window_begin = args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
  const int first_block = window_begin / kKeys;
  const int num_blocks = position / kKeys + 1 - first_block;
  const int split = static_cast<int>(blockIdx.z);
  const int split_begin =
      first_block + static_cast<int>(static_cast<std::int64_t>(num_blocks) * split / args.num_splits);
  const int split_end =
      first_block + static_cast<int>(static_cast<std::int64_t>(num_blocks) * (split + 1) / args.num_splits);

  const auto load = [&](int index) {  // the index-th block of this warp; a group is committed even when it is empty
    const int block = split_begin + warp + index * kWarps;
    if (block < split_end)
      load_block<T, kDim>(args, tile(index % kStages), table, kv_head, block, window_begin, position + 1);
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(i);
  const std::int64_t query =
      token * args.query_stride + static_cast<std::int64_t>(kv_head * args.group + first_head) * kDim;
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < 16 * kChunks; i += kThreads) {
    const bool valid = i / kChunks < num_heads;
    stage_query(tile_chunk<T, kDim>(query_tile, i / kChunks, i % kChunks), args, query + (valid ? i * 8 : 0), valid);
  }
  copy_async_commit();
  if (!args.float_query) copy_async_wait<0>();
  __syncthreads();

  RowPair rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = lane / 4 + r * 8;
    rows.position[r] = head < num_heads ? position : -1;
    rows.slope[r] = args.alibi_slopes != nullptr && head < num_heads
                        ? args.alibi_slopes[kv_head * args.group + first_head + head] * args.scale * kLog2E
                        : 0.0F;
  }
  RowSums<kDim> sums;
  for (int index = 0; split_begin + warp + index * kWarps < split_end; ++index) {
    load(index + kStages - 1);
    copy_async_wait<kStages - 1>();
    __syncwarp();
    float scores[kKeys / 8][4] = {};
    score_keys<T, kDim, kKeys>(scores, tile(index % kStages),
                               [&](std::uint32_t(&a)[4], int k) { load_query<T, kDim>(a, query_tile, k); });
    add_keys<T, kDim, kKeys, true>(sums, scores, tile(index % kStages) + kKeys * kDim,
                                   (split_begin + warp + index * kWarps) * kKeys, rows, args);
    __syncwarp();
  }
  finish_totals(sums);
  copy_async_wait<0>();
  __syncthreads();

  auto& meeting = *reinterpret_cast<Meeting<kDim>*>(memory);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + r * 8;
    if (lane % 4 == 0) {
      meeting.largest[warp][row] = sums.largest[r];
      meeting.total[warp][row] = sums.total[r];
    }
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      *reinterpret_cast<float2*>(&meeting.out[warp][row][d * 8 + (lane % 4) * 2]) =
          make_float2(sums.out[d][2 * r], sums.out[d][2 * r + 1]);
    }
  }
  __syncthreads();
  const int heads_begin = kv_head * args.group + first_head;
  if (static_cast<int>(threadIdx.x) < num_heads) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, meeting.largest[w][row]);
    float total = 0.0F;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = meeting.largest[w][row] == -INFINITY ? 0.0F : exp2f(meeting.largest[w][row] - largest);
      meeting.weight[w][row] = weight;
      total += meeting.total[w][row] * weight;
    }
    meeting.row_total[row] = total;
    if (args.num_splits > 1) {
      const std::int64_t head = static_cast<std::int64_t>(sequence) * args.heads + heads_begin + row;
      reinterpret_cast<float2*>(args.partial_stats)[head * args.num_splits + split] = make_float2(largest, total);
    }
  }
  __syncthreads();
  constexpr int kQuads = kDim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * kQuads; i += kThreads) {
    const int row = i / kQuads;
    const int column = i % kQuads * 4;
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      add_scaled(sum, *reinterpret_cast<const float4*>(&meeting.out[w][row][column]), meeting.weight[w][row]);
    }
    if (args.num_splits == 1) {
      put_quotient(static_cast<T*>(args.out) + token * args.out_stride +
                       static_cast<std::int64_t>(heads_begin + row) * kDim + column,
                   sum, meeting.row_total[row]);
    } else {
      const std::int64_t head = static_cast<std::int64_t>(sequence) * args.heads + heads_begin + row;
      *reinterpret_cast<float4*>(args.partial_out + (head * args.num_splits + split) * kDim + column) = sum;
    }
  }
}

// A thread four elements of a (sequence, head), block y some heads. One pass: no load waits for another.
template <typename T>
__global__ void __launch_bounds__(kThreads) merge_kernel(AttentionArgs args) {
  wait_for_inputs();
  const int quads = args.head_dim / 4;
  const int index = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int head = index / quads;
  if (head >= args.heads) return;
  const int sequence = args.first_sequence + static_cast<int>(blockIdx.x);
  const std::int64_t first_part = (static_cast<std::int64_t>(sequence) * args.heads + head) * args.num_splits;
  const auto* stats = reinterpret_cast<const float2*>(args.partial_stats) + first_part;
  const auto* parts = reinterpret_cast<const float4*>(args.partial_out) + first_part * quads + index % quads;
  float largest = -INFINITY;
  float total = 0.0F;
  float4 sum{};
#pragma unroll 8
  for (int s = 0; s < args.num_splits; ++s) {
    const float2 part = stats[s];  // the largest score, the total
    const float4 out = parts[s * quads];
    const float before = largest;
    largest = fmaxf(largest, part.x);
    const float kept = before == -INFINITY ? 0.0F : exp2f(before - largest);
    const float weight = part.x == -INFINITY ? 0.0F : exp2f(part.x - largest);
    total = total * kept + part.y * weight;
    sum = make_float4(sum.x * kept, sum.y * kept, sum.z * kept, sum.w * kept);
    add_scaled(sum, out, weight);
  }
  put_quotient(static_cast<T*>(args.out) + args.cu_query[sequence] * args.out_stride +
                   static_cast<std::int64_t>(head) * args.head_dim + index % quads * 4,
               sum, total);
}

template <typename T, int kDim>
void launch(const AttentionArgs& args, cudaStream_t stream) {
  constexpr int kLoopBytes = (16 + kWarps * kStages * 2 * kKeys) * kDim * static_cast<int>(sizeof(T));
  constexpr int kBytes = std::max(kLoopBytes, static_cast<int>(sizeof(Meeting<kDim>)));
  static const cudaError_t kRaised =
      cudaFuncSetAttribute(decode_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  CUDA_CHECK(kRaised);
  const dim3 grid(static_cast<unsigned>(args.num_sequences * ((args.group + 15) / 16)),
                  static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(args.num_splits));
  launch_early(decode_kernel<T, kDim>, grid, kThreads, kBytes, stream, args);
  if (args.num_splits == 1) return;
  const unsigned blocks = blocks_for(std::int64_t{args.heads} * kDim / 4, kThreads);
  launch_early(merge_kernel<T>, dim3(static_cast<unsigned>(args.num_sequences), blocks), kThreads, 0, stream, args);
}

template <typename T>
void launch_of_type(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64>(args, stream);
    case 128:
      return launch<T, 128>(args, stream);
    case 256:
      return launch<T, 256>(args, stream);
    default:
      CHECK(false);
  }
}

}  // namespace

void launch_decode_attention(const AttentionArgs& args, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kBFloat16) {
    launch_of_type<__nv_bfloat16>(args, stream);
  } else {
    launch_of_type<__half>(args, stream);
  }
}

}  // namespace shoal::cuda
