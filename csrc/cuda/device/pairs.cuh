// Pairs of warps that share the work of the same 16 owners: how they meet, and what they exchange.
#pragma once

#include <cstdint>

#include "warp.cuh"

namespace s2attn::cuda {

// All threads of a pair; memory that they wrote before is seen after.
template <int kPairs>
__device__ void meet_pair() {
  static_assert(kPairs <= 15, "barrier 0 is that of the block");
  const int pair = threadIdx.x / (2 * kWarp);
  // numbers that are known when compiled: a block is given so many barriers as they say
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    if (pair == i) asm volatile("bar.sync %0, %1;" ::"r"(i + 1), "n"(2 * kWarp) : "memory");
}

// Scores, or what becomes of them, from each warp of a pair to the other. A pair meets once per exchange. That is
// enough with two buffers in turns: a warp writes to a buffer again two exchanges later, after the meeting between
// them, to which the other came only after it had read.
template <int kPairs, int kGroups>
class PairExchange {
  using Buffer = float4[2][kGroups][kWarp];

 public:
  static constexpr int kBytes = kPairs * 2 * static_cast<int>(sizeof(Buffer));

  __device__ explicit PairExchange(char* memory)
      : buffers_(reinterpret_cast<Buffer*>(memory) + threadIdx.x / (2 * kWarp) * 2) {}

  // role: of this warp, 0 or 1.
  template <int kCount>
  __device__ void swap(int role, const float (&own)[kCount][4], float (&other)[kCount][4]) {
    write(role, own);
    meet_pair<kPairs>();
    read(1 - role, other);
    turn_ ^= 1;
  }

 private:
  template <int kCount>
  __device__ void write(int writer, const float (&values)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      buffers_[turn_][writer][i][lane_index()] = float4{values[i][0], values[i][1], values[i][2], values[i][3]};
  }
  template <int kCount>
  __device__ void read(int writer, float (&values)[kCount][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float4 group = buffers_[turn_][writer][i][lane_index()];
      values[i][0] = group.x, values[i][1] = group.y, values[i][2] = group.z, values[i][3] = group.w;
    }
  }

  Buffer* buffers_;
  int turn_ = 0;
};

}  // namespace s2attn::cuda
