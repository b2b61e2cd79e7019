// A row's team for sampling.cu: the blocks of one cluster, which share a row of logits and add up what they find in it.
// All sums are of integers, so no result depends on who adds first, nor on how many blocks a team has.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "ops/cuda/device_math.cuh"

namespace shoal::cuda {

constexpr int kTeamThreads = 1024;  // of a block
constexpr int kTeamWarps = kTeamThreads / kWarp;
constexpr int kDigitBits = 10;  // of the keys that a cut selects by: a bin a thread, a group of 32 bins a warp
constexpr int kBins = 1 << kDigitBits;
static_assert(kBins == kTeamThreads && kTeamWarps == kWarp);

// Parts of a probability: weights as integers, scaled so that those of a row add up to less than 2^63.
using Units = unsigned long long;

constexpr unsigned kAllLanes = 0xffffffffU;

__device__ inline Units warp_sum(Units value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ inline Units warp_max(Units value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

// The sum over this lane and those before it.
__device__ inline Units warp_prefix_sum(Units value, int lane) {
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Units other = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += other;
  }
  return value;
}

// The bin in which a cut ends.
struct FoundBin {
  int bin;
  Units before;  // in the bins before it, and what the caller had before them
  Units needed;
};

// Shared memory of a block; the other blocks of the team read it too.
struct TeamMemory {
  Units of_warp[kTeamWarps];
  // A bin's units in two words: shared memory adds 32-bit integers at full speed, but 64-bit ones in a loop.
  std::uint32_t low[kBins];
  std::uint32_t high[kBins];
  Units of_group[kWarp];  // sums over 32 bins
  FoundBin found;

  __device__ Units bin(int at) const { return (static_cast<Units>(high[at]) << 32) | low[at]; }
};

// The cluster where the processor has clusters (sm_90 and later); else a team is one block.
class TeamBlocks {
 public:
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }
  __device__ int count() const { return static_cast<int>(cluster_.num_blocks()); }
  __device__ void sync() { cluster_.sync(); }
  __device__ const TeamMemory& memory_of(TeamMemory& own, int rank) {
    return *cluster_.map_shared_rank(&own, static_cast<unsigned>(rank));
  }

 private:
  cooperative_groups::cluster_group cluster_ = cooperative_groups::this_cluster();
#else
  __device__ int rank() const { return 0; }
  __device__ int count() const { return 1; }
  __device__ void sync() { __syncthreads(); }
  __device__ const TeamMemory& memory_of(TeamMemory& own, int) { return own; }
#endif
};

// Every member is called by all threads of the team at once, unless it says otherwise.
class Team {
 public:
  __device__ explicit Team(TeamMemory& memory)
      : memory_(memory),
        rank_(team_.rank()),
        blocks_(team_.count()),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ int lane() const { return lane_; }
  __device__ int warp() const { return rank_ * kTeamWarps + warp_; }  // among all warps of the team
  __device__ int warps() const { return blocks_ * kTeamWarps; }

  // The largest value of all threads.
  __device__ Units max_of(Units value) {
    publish(warp_max(value));
    Units largest = 0;
    for (int rank = 0; rank < blocks_; ++rank) largest = max(largest, peer(rank).of_warp[lane_]);
    team_.sync();
    return warp_max(largest);
  }

  struct Sums {
    Units before;  // over the warps before this one
    Units own;     // over this warp
    Units total;   // over all warps
  };
  __device__ Sums sums_of(Units value) {
    const Units own = warp_sum(value);
    publish(own);
    Units before = 0;
    Units total = 0;
    for (int rank = 0; rank < blocks_; ++rank) {
      const Units other = peer(rank).of_warp[lane_];
      total += other;
      if (rank * kTeamWarps + lane_ < warp()) before += other;
    }
    team_.sync();
    return {.before = warp_sum(before), .own = own, .total = warp_sum(total)};
  }

  __device__ void clear_bins() {
    memory_.low[threadIdx.x] = 0;
    memory_.high[threadIdx.x] = 0;
    __syncthreads();
  }

  // Any thread on its own, between clear_bins() and find_bin().
  __device__ void add_to_bin(int at, Units amount) {
    const auto low = static_cast<std::uint32_t>(amount);
    const bool carries = atomicAdd(&memory_.low[at], low) > ~low;
    const std::uint32_t high = static_cast<std::uint32_t>(amount >> 32) + (carries ? 1U : 0U);
    if (high != 0) atomicAdd(&memory_.high[at], high);
  }

  // The first bin in which the sum over the team's bins, with `before` in front of them, reaches what is needed:
  // needed_of(sum over all) > 0 and no more than that sum.
  template <typename NeededOf>
  __device__ FoundBin find_bin(Units before, const NeededOf& needed_of) {
    __syncthreads();
    const Units of_group = warp_sum(memory_.bin(static_cast<int>(threadIdx.x)));
    if (lane_ == 0) memory_.of_group[warp_] = of_group;
    team_.sync();
    if (warp_ == 0) {  // each block's, so that none has to be told
      Units amount = 0;
      for (int rank = 0; rank < blocks_; ++rank) amount += peer(rank).of_group[lane_];
      Units reached = before + warp_prefix_sum(amount, lane_);
      const Units needed = needed_of(__shfl_sync(kAllLanes, reached, kWarp - 1));
      const int group = first_lane(reached >= needed);
      const Units before_group = __shfl_sync(kAllLanes, reached - amount, group);
      amount = 0;
      for (int rank = 0; rank < blocks_; ++rank) amount += peer(rank).bin(group * kWarp + lane_);
      reached = before_group + warp_prefix_sum(amount, lane_);
      const int last = first_lane(reached >= needed);
      if (lane_ == last) {
        memory_.found = {.bin = group * kWarp + lane_, .before = reached - amount, .needed = needed};
      }
    }
    team_.sync();
    return memory_.found;
  }

 private:
  __device__ static int first_lane(bool holds) { return __ffs(static_cast<int>(__ballot_sync(kAllLanes, holds))) - 1; }

  __device__ const TeamMemory& peer(int rank) { return team_.memory_of(memory_, rank); }

  __device__ void publish(Units of_warp) {
    if (lane_ == 0) memory_.of_warp[warp_] = of_warp;
    team_.sync();
  }

  TeamBlocks team_;
  TeamMemory& memory_;
  int rank_;
  int blocks_;
  int warp_;
  int lane_;
};

}  // namespace shoal::cuda
