// Pieces of attention on tensor cores (m16n8k16, sm_80 and later): tiles in shared memory, scores, online softmax.
// A warp holds 16 query rows; of these a lane sees rows lane / 4 and lane / 4 + 8. Used by the prefill and decode
// kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/block_size.h"
#include "ops/cuda/attention_args.h"
#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {

constexpr float kLog2E = 1.4426950408889634F;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory without a register between; zeros where !valid, and then `from` is not read.
__device__ inline void copy_async(void* to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

// c += a b: a 16 x 16, b 16 x 8.
template <typename T>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (sizeof(T) == 2 && std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ inline std::uint32_t pack_two(float low, float high) {
  const Pack<T, 2> pair{from_float<T>(low), from_float<T>(high)};
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Eight values of the query, `offset` elements in, to shared memory as T.
template <typename T>
__device__ inline void stage_query(T* to, const AttentionArgs& args, std::int64_t offset, bool valid) {
  if (!args.float_query) {
    copy_async(to, static_cast<const T*>(args.query) + offset, valid);
    return;
  }
  Pack<T, 8> values;
  const auto* from = static_cast<const float*>(args.query) + offset;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Pack<float, 4> loaded = valid ? *reinterpret_cast<const Pack<float, 4>*>(from + half * 4) : Pack<float, 4>{};
#pragma unroll
    for (int i = 0; i < 4; ++i) values.v[half * 4 + i] = from_float<T>(loaded.v[i]);
  }
  *reinterpret_cast<Pack<T, 8>*>(to) = values;
}

// Rows of kDim 16-bit values in shared memory, their 16-byte chunks permuted so that eight rows at one column fall into
// different banks.
template <typename T, int kDim>
__device__ inline T* tile_chunk(T* tile, int row, int chunk) {
  return tile + row * kDim + ((chunk ^ (row & 7)) * 8);
}

// The rows that a lane's sums belong to, and what decides which keys they see.
struct RowPair {
  int position[2];  // of the query; -1: no such row
  float slope[2];   // ALiBi's, times scale and log2(e)
};

// Sixteen query rows of a warp: their sums so far, in base-2 exponentials.
template <int kDim>
struct RowSums {
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0.0F, 0.0F};
};

// A-fragments of 16 rows x 16 columns at column 16 * k of a tile.
template <typename T, int kDim>
__device__ inline void load_query(std::uint32_t (&a)[4], T* tile, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(a, tile_chunk<T, kDim>(tile, lane % 16, 2 * k + lane / 16));
}

// Scores of 16 rows against kKeys keys of a tile.
template <typename T, int kDim, int kKeys, typename QueryAt>
__device__ inline void score_keys(float (&scores)[kKeys / 8][4], T* keys, const QueryAt& query_at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t a[4];
    query_at(a, k);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t b[4];  // two groups of eight keys, each in two halves of the sixteen columns
      const int row = n * 16 + (lane / 16) * 8 + lane % 8;
      load_matrices(b, tile_chunk<T, kDim>(keys, row, 2 * k + (lane / 8) % 2));
      multiply_add<T>(scores[2 * n], a, b[0], b[1]);
      multiply_add<T>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Scales, masks and exponentiates the scores of keys [first_key, first_key + kKeys), and adds their values' sums.
// kMasked is false where every row sees every one of these keys.
template <typename T, int kDim, int kKeys, bool kMasked>
__device__ inline void add_keys(RowSums<kDim>& sums, float (&scores)[kKeys / 8][4], T* values, int first_key,
                                const RowPair& rows, const AttentionArgs& args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float scale = args.scale * kLog2E;
  float largest[2] = {sums.largest[0], sums.largest[1]};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + n * 8 + (lane % 4) * 2 + i % 2;
      const int position = rows.position[i / 2];
      float score = scores[n][i] * scale;
      if (args.alibi_slopes != nullptr) score += rows.slope[i / 2] * static_cast<float>(key);
      if constexpr (kMasked) {
        const bool seen = key <= position && (args.sliding_window == 0 || key > position - args.sliding_window);
        score = seen ? score : -INFINITY;
      }
      scores[n][i] = score;
      largest[i / 2] = fmaxf(largest[i / 2], score);
    }
  }
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffU, largest[r], 1));
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffU, largest[r], 2));
    shift[r] = largest[r] == -INFINITY ? 0.0F : largest[r];  // a row that has seen no key yet
    const float shrink = exp2f(sums.largest[r] - shift[r]);
    sums.largest[r] = largest[r];
    sums.total[r] *= shrink;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      sums.out[d][2 * r] *= shrink;
      sums.out[d][2 * r + 1] *= shrink;
    }
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = exp2f(scores[n][i] - shift[i / 2]);
      sums.total[i / 2] += scores[n][i];
    }
  }
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    const std::uint32_t a[4] = {pack_two<T>(scores[2 * k][0], scores[2 * k][1]),
                                pack_two<T>(scores[2 * k][2], scores[2 * k][3]),
                                pack_two<T>(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                                pack_two<T>(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      std::uint32_t b[4];
      load_matrices_transposed(b, tile_chunk<T, kDim>(values, k * 16 + lane % 16, 2 * d + lane / 16));
      multiply_add<T>(sums.out[2 * d], a, b[0], b[1]);
      multiply_add<T>(sums.out[2 * d + 1], a, b[2], b[3]);
    }
  }
}

// Each lane's share of a row's total becomes the whole.
template <int kDim>
__device__ inline void finish_totals(RowSums<kDim>& sums) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums.total[r] += __shfl_xor_sync(0xffffffffU, sums.total[r], 1);
    sums.total[r] += __shfl_xor_sync(0xffffffffU, sums.total[r], 2);
  }
}

// Where the row of `key` begins in the cache, in elements.
__device__ inline std::int64_t cache_row(const AttentionArgs& args, const std::int32_t* table, int key, int kv_head) {
  const std::int64_t slot = static_cast<std::int64_t>(table[key / kBlockSize]) * kBlockSize + key % kBlockSize;
  return (slot * args.kv_heads + kv_head) * args.head_dim;
}

}  // namespace shoal::cuda
